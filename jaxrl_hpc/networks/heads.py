"""Heads on torsos: action values, plain or dueling (Wang et al. 2016), with or without memory."""

from __future__ import annotations

from collections.abc import Sequence

import flax.linen as nn

from jaxrl_hpc.networks.dense import Dense
from jaxrl_hpc.networks.recurrent import LSTM, Carry
from jaxrl_hpc.networks.torso import MLP
from jaxrl_hpc.types import Array


class QNetwork(nn.Module):
    """Q(s, .) = head(torso(s)); dueling: V + A - mean A, from streams with hidden layers of their own."""

    torso: nn.Module
    num_actions: int
    dueling: bool = False
    stream_hidden: Sequence[int] = ()
    activation: str = "relu"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        features = self.torso(x)
        if not self.dueling:
            return self.readout(self.num_actions)(features)
        hidden = [MLP(self.stream_hidden, self.activation)(features) for _ in range(2)]
        advantage, value = self.readout(self.num_actions)(hidden[0]), self.readout(1)(hidden[1])
        return value + advantage - advantage.mean(axis=-1, keepdims=True)

    def readout(self, outputs: int) -> Dense:
        return Dense(outputs, kernel_init=nn.initializers.orthogonal(1.0))


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
