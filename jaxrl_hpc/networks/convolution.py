"""Convolutions with fast gradients on CPUs.

    y[n, p] = Σ_u x[n, s p + u] W[u],    dW[u] = Σ_np x[n, s p + u] dy[n, p]

XLA's own gradients of convolutions are slow on CPUs, most of all inside loops: an update of a small network
for Atari games takes ten times as long as with the method below. If the stride s divides the kernel's side k,
images become blocks of s x s pixels; the kernel is then m x m blocks, m = k / s, and dW is one product of the
blocks with m² shifted copies of dy. Other convolutions are patches times a matrix. On other devices strided
ones are XLA's convolution. Parameters are those of `flax.linen.Conv`. In mixed precision (`dense.py`) all are
patches times a matrix.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_hpc.networks.dense import half_product, product
from jaxrl_hpc.types import Array


class Convolution(nn.Module):
    """A valid convolution with bias, channels last."""

    filters: int
    kernel: int
    stride: int
    dtype: str = "float32"

    @nn.compact
    def __call__(self, x: Array) -> Array:  # [..., H, W, C] -> [..., H', W', filters]
        shape = (self.kernel, self.kernel, x.shape[-1], self.filters)
        kernel = self.param("kernel", nn.initializers.orthogonal(2**0.5), shape)
        bias = self.param("bias", nn.initializers.zeros, (self.filters,))
        images = x.reshape(-1, *x.shape[-3:])
        if self.dtype == "bfloat16":
            y = by_patches(images, kernel, self.stride, half_product) + bias
        else:
            y = convolve(images, kernel, self.stride) + bias
        return y.reshape(*x.shape[:-3], *y.shape[1:])


def convolve(x: Array, kernel: Array, stride: int) -> Array:
    """x [N, H, W, C] and kernel [k, k, C, F] -> [N, H', W', F], without padding."""
    if stride > 1 and kernel.shape[0] % stride == 0:
        return _by_blocks(x, kernel, stride)
    return by_patches(x, kernel, stride)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _by_blocks(x: Array, kernel: Array, stride: int) -> Array:
    return by_xla(x, kernel, stride)


def _forward(x: Array, kernel: Array, stride: int) -> tuple[Array, tuple[Array, Array]]:
    return by_xla(x, kernel, stride), (x, kernel)


def _backward(stride: int, residuals: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    """The compiler drops dx where x is an observation."""
    x, kernel = residuals
    both = functools.partial(jax.lax.platform_dependent, x, kernel, dy)
    dx: Array = both(
        cpu=lambda x, k, dy: jax.vjp(lambda x: by_patches(x, k, stride), x)[1](dy)[0],
        default=lambda x, k, dy: jax.vjp(lambda x: by_xla(x, k, stride), x)[1](dy)[0],
    )
    dkernel: Array = both(
        cpu=lambda x, k, dy: _kernel_gradient(x, dy, k.shape[0], stride),
        default=lambda x, k, dy: jax.vjp(lambda k: by_xla(x, k, stride), k)[1](dy)[0],
    )
    return dx, dkernel


_by_blocks.defvjp(_forward, _backward)


def by_xla(x: Array, kernel: Array, stride: int) -> Array:
    y: Array = jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return y


def by_patches(
    x: Array, kernel: Array, stride: int, times: Callable[[Array, Array], Array] = product
) -> Array:
    """Patches [N, H', W', k² C] times a matrix."""
    side, filters = kernel.shape[0], kernel.shape[-1]
    height, width = ((extent - side) // stride * stride + 1 for extent in x.shape[1:3])
    shifts = [(i, j) for i in range(side) for j in range(side)]
    patches = jnp.concatenate(
        [x[:, i : i + height : stride, j : j + width : stride] for i, j in shifts], axis=-1
    )
    return times(patches, kernel.reshape(-1, filters))


def _kernel_gradient(x: Array, dy: Array, side: int, stride: int) -> Array:
    channels, filters, m = x.shape[-1], dy.shape[-1], side // stride
    height, width = dy.shape[1] + m - 1, dy.shape[2] + m - 1  # of the image, in blocks
    blocks = as_blocks(x, stride)[:, :height, :width].reshape(-1, stride * stride * channels)
    shifts = [(i, j) for i in range(m) for j in range(m)]
    shifted = [jnp.pad(dy, ((0, 0), (i, m - 1 - i), (j, m - 1 - j), (0, 0))) for i, j in shifts]
    outputs = jnp.concatenate(shifted, axis=-1).reshape(-1, m * m * filters)
    parts = (blocks.T @ outputs).reshape(stride, stride, channels, m, m, filters)
    return parts.transpose(3, 0, 4, 1, 2, 5).reshape(side, side, channels, filters)


def as_blocks(x: Array, side: int) -> Array:
    """[N, H, W, C] -> [N, H / side, W / side, side² C], without the remainder at the edges."""
    number, height, width, channels = x.shape
    rows, columns = height // side, width // side
    x = x[:, : rows * side, : columns * side].reshape(number, rows, side, columns, side, channels)
    return jnp.moveaxis(x, 2, 3).reshape(number, rows, columns, side * side * channels)
