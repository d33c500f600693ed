"""An LSTM (Hochreiter & Schmidhuber 1997) over unrolls with episode ends inside.

    (i, f, g, o) = W x_t + U h_{t-1} + b,  c_t = sigmoid(f + 1) c_{t-1} + sigmoid(i) tanh(g),
    h_t = sigmoid(o) tanh(c_t)

c and h are zeroed before a step that begins an episode. The product with the inputs is one matrix
product over the whole unroll; only U h is left inside the loop over time.
"""

from __future__ import annotations

from typing import NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl_hpc.networks.dense import Dense
from jaxrl_hpc.types import Array


class Carry(NamedTuple):
    """The LSTM's memory."""

    cell: Array  # […, H]
    hidden: Array  # […, H], which is also the output


def initial_carry(batch: int, width: int) -> Carry:
    return Carry(jnp.zeros((batch, width)), jnp.zeros((batch, width)))


def starts_of(last: Array) -> Array:
    """Steps [T, B] that begin an episode inside an unroll. Row 0 is left to the carry it starts with."""
    return jnp.concatenate([jnp.zeros_like(last[:1]), last[:-1]])


class LSTM(nn.Module):
    """One layer."""

    width: int

    @nn.compact
    def __call__(self, inputs: Array, carry: Carry, starts: Array, restart: Carry | None = None) -> Carry:
        """The memory after every step.

        Args:
          inputs: [T, B, F].
          carry: leaves [B, H], before the first step.
          starts: [T, B] bool, true where the memory does not continue from the previous step.
          restart: leaves [T, B, H], the memory at these steps; None: zero.

        Returns:
          Carry with leaves [T, B, H].
        """
        chex.assert_rank([inputs, starts], [3, 2])
        from_input = Dense(4 * self.width, kernel_init=nn.initializers.lecun_normal())(inputs)
        kernel = self.param("recurrent", nn.initializers.orthogonal(), (self.width, 4 * self.width))

        def step(carry: Carry, item: tuple[Array, Array, Carry | None]) -> tuple[Carry, Carry]:
            driven, begins, other = item
            if other is None:
                keep = 1.0 - begins.astype(driven.dtype)[:, None]
                carry = Carry(keep * carry.cell, keep * carry.hidden)
            else:
                carry = Carry(*(jnp.where(begins[:, None], o, c) for o, c in zip(other, carry, strict=True)))
            gates = driven + carry.hidden @ kernel
            enter, forget, candidate, leave = jnp.split(gates, 4, axis=-1)
            cell = jax.nn.sigmoid(forget + 1.0) * carry.cell
            cell = cell + jax.nn.sigmoid(enter) * jnp.tanh(candidate)
            new = Carry(cell, jax.nn.sigmoid(leave) * jnp.tanh(cell))
            return new, new

        if inputs.shape[0] == 1:  # acting: no loop for one step
            new, _ = step(carry, jax.tree.map(lambda x: x[0], (from_input, starts, restart)))
            first: Carry = jax.tree.map(lambda x: x[None], new)
            return first
        return jax.lax.scan(step, carry, (from_input, starts, restart))[1]
