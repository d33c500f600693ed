"""Heads on torsos: action values, plain or dueling (Wang et al. 2016)."""

from __future__ import annotations

import flax.linen as nn

from jaxrl_hpc.types import Array


class QNetwork(nn.Module):
    """Q(s, .) = head(torso(s)); dueling: V + A - mean A."""

    torso: nn.Module
    num_actions: int
    dueling: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        features = self.torso(x)
        advantage = nn.Dense(self.num_actions, kernel_init=nn.initializers.orthogonal(1.0))(features)
        if not self.dueling:
            return advantage
        value = nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0))(features)
        return value + advantage - advantage.mean(axis=-1, keepdims=True)
