"""Deterministic policies: an action in [-1, 1] per dimension, to be stretched to the space's bounds."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp

from jaxrl_hpc.types import Array


class DeterministicActor(nn.Module):
    """tanh(head(torso(s))). The head starts near zero, so that no action starts saturated."""

    torso: nn.Module
    action_size: int

    @nn.compact
    def __call__(self, x: Array) -> Array:  # [N, …] -> [N, A]
        features = self.torso(x)
        return jnp.tanh(nn.Dense(self.action_size, kernel_init=nn.initializers.orthogonal(0.01))(features))
