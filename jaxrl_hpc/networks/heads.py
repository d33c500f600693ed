"""Heads on torsos: action values, plain or dueling (Wang et al. 2016), with or without memory."""

from __future__ import annotations

from collections.abc import Sequence

import flax.linen as nn

from jaxrl_hpc.networks.dense import Dense
from jaxrl_hpc.networks.noisy import NoisyDense, streams
from jaxrl_hpc.networks.recurrent import LSTM, Carry
from jaxrl_hpc.networks.torso import ACTIVATIONS, MLP
from jaxrl_hpc.types import Array


class QNetwork(nn.Module):
    """Q(s, .) = head(torso(s)); dueling: V + A - mean A, from streams with hidden layers of their own.

    With atoms an action has so many outputs instead of one value (ops/value_distributions.py). With noise
    the head's layers are noisy.
    """

    torso: nn.Module
    num_actions: int
    dueling: bool = False
    stream_hidden: Sequence[int] = ()
    activation: str = "relu"
    atoms: int = 0
    noise: float = 0.0

    @nn.compact
    def __call__(self, x: Array, key: Array | None = None) -> Array:
        """[N, …] -> [N, A] or [N, A, atoms]; key [] or [N] is that of the noise, None: without."""
        features, keys = self.torso(x), streams(key)

        def dense(x: Array, outputs: int, gain: float) -> Array:
            if self.noise:
                return NoisyDense(outputs, self.noise, gain)(x, next(keys))
            return Dense(outputs, kernel_init=nn.initializers.orthogonal(gain))(x)

        def readout(x: Array, actions: int) -> Array:
            if not self.atoms:
                return dense(x, actions, 1.0)
            return dense(x, actions * self.atoms, 1.0).reshape(*x.shape[:-1], actions, self.atoms)

        def stream(actions: int) -> Array:
            if not self.noise:
                return readout(MLP(self.stream_hidden, self.activation)(features), actions)
            x = features
            for width in self.stream_hidden:
                x = ACTIVATIONS[self.activation](dense(x, width, 2**0.5))
            return readout(x, actions)

        if not self.dueling:
            return readout(features, self.num_actions)
        advantage, value = stream(self.num_actions), stream(1)
        return value + advantage - advantage.mean(axis=-2 if self.atoms else -1, keepdims=True)


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
