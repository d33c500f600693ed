"""Convolutions that are fast on CPUs.

    y[n, p] = Σ_u x[n, s p + u] W[u],    dW[u] = Σ_np x[n, s p + u] dy[n, p]

XLA's own convolutions are slow on CPUs, and their gradients most of all inside loops. If the stride s divides
the kernel's side k and the number of filters is a multiple of 16, all passes are calls into a compiled
library (`native`), which reads images of bytes directly. Otherwise, and where the library is missing, a
stride that divides k turns images into blocks of s x s pixels; the kernel is then m x m blocks, m = k / s,
and dW is one product of the blocks with m² shifted copies of dy. Other convolutions are patches times a
matrix. On other devices strided ones are XLA's convolution. Parameters are those of `flax.linen.Conv`. In
mixed precision (`dense.py`) operands are rounded to bfloat16; without the library all are patches times a
matrix.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.networks import native
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
        height, width = x.shape[-3:-1]
        if min(height, width) < self.kernel:
            raise UserError(
                f"network.torso: a kernel of {self.kernel} x {self.kernel} does not fit into an image of "
                f"{height} x {width}; set torso to cnn, with smaller kernels or strides, or fewer layers"
            )
        shape = (self.kernel, self.kernel, x.shape[-1], self.filters)
        kernel = self.param("kernel", nn.initializers.orthogonal(2**0.5), shape)
        bias = self.param("bias", nn.initializers.zeros, (self.filters,))
        images = x.reshape(-1, *x.shape[-3:])
        y = layer(images, kernel, bias, self.stride, self.dtype == "bfloat16")
        return y.reshape(*x.shape[:-3], *y.shape[1:])


def layer(x: Array, kernel: Array, bias: Array, stride: int, half: bool = False) -> Array:
    """x [N, H, W, C], bytes as parts of 255, and kernel [k, k, C, F] -> [N, H', W', F], without padding."""
    if native.suits(x, kernel, stride, half):
        scale = 1 / 255 if x.dtype == jnp.uint8 else 1.0
        return _by_library(x, kernel, bias, native.Settings(stride, scale, half, native.level()))
    if x.dtype == jnp.uint8:
        x = x.astype(jnp.float32) / 255.0
    if half:
        return by_patches(x, kernel, stride, half_product) + bias
    return convolve(x, kernel, stride) + bias


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _by_library(x: Array, kernel: Array, bias: Array, settings: native.Settings) -> Array:
    return native.one_pass("forward", _plain_forward)(x, kernel, bias, settings=settings)


def _library_forward(
    x: Array, kernel: Array, bias: Array, settings: native.Settings
) -> tuple[Array, tuple[Array, Array]]:
    return _by_library(x, kernel, bias, settings), (x, kernel)


def _library_backward(
    settings: native.Settings, residuals: tuple[Array, Array], dy: Array
) -> tuple[Array | None, Array, Array]:
    """The compiler drops dx where x is an observation of floats; bytes have none."""
    x, kernel = residuals
    dx = None
    if x.dtype != jnp.uint8:
        of_inputs = _plain_inputs
        if kernel.shape[2] % native.VECTOR == 0:
            of_inputs = native.one_pass("inputs", _plain_inputs)
        dx = of_inputs(dy, kernel, settings=settings, sides=(x.shape[1], x.shape[2]))
    dkernel = native.one_pass("weights", _plain_weights)(x, dy, settings=settings, side=kernel.shape[0])
    return dx, dkernel, dy.sum((0, 1, 2))


_by_library.defvjp(_library_forward, _library_backward)


def _plain_forward(x: Array, kernel: Array, bias: Array, settings: native.Settings) -> Array:
    x = x.astype(jnp.float32) * settings.scale
    if settings.half:
        return by_patches(x, kernel, settings.stride, half_product) + bias
    return by_xla(x, kernel, settings.stride) + bias


def _plain_weights(x: Array, dy: Array, settings: native.Settings, side: int) -> Array:
    kernel, bias = jnp.zeros((side, side, x.shape[-1], dy.shape[-1])), jnp.zeros(dy.shape[-1])
    found: Array = jax.vjp(lambda w: _plain_forward(x, w, bias, settings), kernel)[1](dy)[0]
    return found


def _plain_inputs(dy: Array, kernel: Array, settings: native.Settings, sides: tuple[int, int]) -> Array:
    x, bias = jnp.zeros((dy.shape[0], *sides, kernel.shape[2])), jnp.zeros(dy.shape[-1])
    found: Array = jax.vjp(lambda x: _plain_forward(x, kernel, bias, settings), x)[1](dy)[0]
    return found


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
