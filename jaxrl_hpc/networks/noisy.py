"""Noisy layers (Fortunato et al. 2018): exploration by random weights of learned size.

    y = x (W + S ∘ f(e) f(e')ᵀ) + b + s ∘ f(e'),    f(x) = sign(x) √|x|,  e and e' standard normal

The noise is a product of one factor per input and one per output, so that every row can have its own at the
price of a second matrix product: ((x ∘ f(e)) S) ∘ f(e').
"""

from __future__ import annotations

from collections.abc import Iterator

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_hpc.networks.dense import Dense, product
from jaxrl_hpc.types import Array


def streams(key: Array | None) -> Iterator[Array | None]:
    """Keys [] or [N] for one draw after the other, each folded from the given one; Nones without a key."""
    number = 0
    while True:
        if key is None:
            yield None
        else:
            fold = jax.random.fold_in if key.ndim == 0 else jax.vmap(jax.random.fold_in, in_axes=(0, None))
            yield fold(key, number)
        number += 1


def factors(key: Array, inputs: int, outputs: int) -> tuple[Array, Array]:
    """f(e) [..., inputs] and f(e') [..., outputs] for a key [] or one per row [N]."""

    def draw(one: Array) -> Array:
        normal = jax.random.normal(one, (inputs + outputs,))
        return jnp.sign(normal) * jnp.sqrt(jnp.abs(normal))

    drawn = draw(key) if key.ndim == 0 else jax.vmap(draw)(key)
    return drawn[..., :inputs], drawn[..., inputs:]


class NoisyDense(nn.Module):
    """A dense layer with noise of its own for every key; without a key W and b alone."""

    outputs: int
    noise: float  # deviation of a weight at the start, times √inputs
    gain: float  # of the orthogonal initial kernel

    @nn.compact
    def __call__(self, x: Array, key: Array | None) -> Array:  # x [N, K], key [] or [N]
        inputs = x.shape[-1]
        mean = Dense(self.outputs, kernel_init=nn.initializers.orthogonal(self.gain))(x)
        size = nn.initializers.constant(self.noise / inputs**0.5)
        kernel = self.param("kernel_noise", size, (inputs, self.outputs))
        bias = self.param("bias_noise", size, (self.outputs,))
        if key is None:
            return mean
        into, out_of = factors(key, inputs, self.outputs)
        return mean + (product(x * into, kernel) + bias) * out_of
