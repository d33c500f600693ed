"""Heads on torsos: action values, plain or dueling (Wang et al. 2016), with or without memory."""

from __future__ import annotations

import flax.linen as nn

from jaxrl_hpc.networks.recurrent import LSTM, Carry
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


class RecurrentQNetwork(nn.Module):
    """Q(s_1 … s_t, .) = head(LSTM(torso(s_t)))."""

    torso: nn.Module
    width: int
    head: QNetwork

    @nn.compact
    def __call__(
        self, x: Array, carry: Carry, starts: Array, restart: Carry | None = None
    ) -> tuple[Array, Carry]:
        """Values [T, B, A] and the memory after every step, leaves [T, B, H]; arguments as those of LSTM,
        x is [T, B, …]."""
        memory = LSTM(self.width)(self.torso(x), carry, starts, restart)
        return self.head(memory.hidden), memory
