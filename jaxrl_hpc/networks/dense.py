"""A dense layer with a fast weight gradient on CPUs.

    y = x W + b,    dW = xᵀ dy = (dyᵀ x)ᵀ

XLA's matrix product on CPUs is two to ten times slower than it could be when it contracts over the rows of
both operands, most so for few outputs. Transposing the narrower of x and dy first and then multiplying
plainly avoids that. Parameters are those of `flax.linen.Dense`.

Mixed precision (`dtype="bfloat16"`): operands of all three products are rounded to bfloat16, sums and results
are float32, and so are parameters and their gradients. Values stored for the backward pass are bfloat16 too.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_hpc.types import Array


@jax.custom_vjp
def product(x: Array, weight: Array) -> Array:
    """x [..., K] times weight [K, P]."""
    return jnp.dot(x, weight)


def _forward(x: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    return product(x, weight), (x, weight)


def _backward(residuals: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    x, weight = residuals
    dx = jnp.dot(dy, weight.T)
    rows, outputs = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    return dx, jax.lax.platform_dependent(
        rows, outputs, cpu=weight_gradient, default=lambda x, dy: jnp.dot(x.T, dy)
    )


def weight_gradient(x: Array, dy: Array) -> Array:
    """xᵀ dy for x [N, K] and dy [N, P]; the barriers keep XLA from folding the transposes away."""

    def barrier(x: Array) -> Array:
        kept: Array = jax.lax.optimization_barrier(x)
        return kept

    if dy.shape[1] <= x.shape[1]:
        return barrier(jnp.dot(barrier(dy.T), x)).T
    return jnp.dot(barrier(x.T), dy)


product.defvjp(_forward, _backward)


@jax.custom_vjp
def half_product(x: Array, weight: Array) -> Array:
    """`product` of operands rounded to bfloat16, added up in float32."""
    return _half_dot(_half(x), _half(weight))


def _half(x: Array) -> Array:
    return x.astype(jnp.bfloat16)


def _half_dot(x: Array, y: Array) -> Array:
    return jnp.dot(x, y, preferred_element_type=jnp.float32)


def _half_forward(x: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    rounded = _half(x), _half(weight)
    return _half_dot(*rounded), rounded


def _half_backward(residuals: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    (x, weight), dy = residuals, _half(dy)
    rows, outputs = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    return _half_dot(dy, weight.T), _half_dot(rows.T, outputs)


half_product.defvjp(_half_forward, _half_backward)


def _dot_general(x: Array, weight: Array, dimensions: Any, precision: Any = None, **_: Any) -> Array:
    """The contraction that `nn.Dense` needs: the last axis of x against the first of weight."""
    assert dimensions == (((x.ndim - 1,), (0,)), ((), ())) and precision is None
    return product(x, weight)


def _half_dot_general(x: Array, weight: Array, dimensions: Any, precision: Any = None, **_: Any) -> Array:
    assert dimensions == (((x.ndim - 1,), (0,)), ((), ())) and precision is None
    return half_product(x, weight)


class Dense(nn.Dense):
    """`flax.linen.Dense` with the gradient above."""

    dot_general: Any = _dot_general


def hidden_dense(width: int, dtype: str) -> Dense:
    """A layer of a torso whose products have operands of this type."""
    return Dense(
        width,
        kernel_init=nn.initializers.orthogonal(2**0.5),
        dot_general=_half_dot_general if dtype == "bfloat16" else _dot_general,
    )
