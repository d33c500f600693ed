"""Policies: actor-critic networks (a policy head and a value head on one torso or on two, with an optional
LSTM between torso and heads), deterministic actors and Gaussian ones."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp

from jaxrl_hpc.networks.dense import Dense
from jaxrl_hpc.networks.recurrent import LSTM
from jaxrl_hpc.types import Array, PyTree


class Readout(nn.Module):
    """A dense layer with few outputs. Its kernel is [outputs, inputs]: the kernel's gradient is then a
    product with few rows, on CPUs five times quicker than its transpose."""

    outputs: int
    scale: float  # gain of the orthogonal initial kernel
    bias: float = 0.0

    @nn.compact
    def __call__(self, features: Array) -> Array:
        orthogonal = nn.initializers.orthogonal(self.scale, column_axis=0)
        kernel = self.param("kernel", orthogonal, (self.outputs, features.shape[-1]))
        bias = self.param("bias", nn.initializers.constant(self.bias), (self.outputs,))
        return features @ kernel.T + bias


class PolicyHead(nn.Module):
    """Parameters of the action distribution; log_std, if any, is one vector or a function of state."""

    num_outputs: int
    continuous: bool
    state_std: bool
    log_std: float

    @nn.compact
    def __call__(self, features: Array) -> Array:
        small = 0.01  # the first policy is close to uniform
        if not self.continuous:
            return Readout(self.num_outputs, small)(features)
        size = self.num_outputs // 2
        mean = Readout(size, small)(features)
        if self.state_std:
            log_std = Readout(size, small, self.log_std)(features)
        else:
            start = nn.initializers.constant(self.log_std)
            log_std = jnp.broadcast_to(self.param("log_std", start, (size,)), mean.shape)
        return jnp.concatenate([mean, log_std], axis=-1)


class ActorCritic(nn.Module):
    """Observations -> (outputs of the policy [..., P], values [...], memory after each step)."""

    torso: nn.Module
    critic_torso: nn.Module | None  # None: the heads share a torso
    head: nn.Module
    lstm_width: int  # 0: no memory

    @nn.compact
    def __call__(self, inputs: Array, carry: PyTree, starts: PyTree) -> tuple[Array, Array, PyTree]:
        """With an LSTM inputs are [T, B, …], carry is a Carry [B, H] and starts [T, B]; without one the
        leading axes are free, and carry and starts are ignored."""
        features = self.torso(inputs)
        memory: PyTree = ()
        if self.lstm_width:
            memory = LSTM(self.lstm_width)(features, carry, starts)
            features = memory.hidden
        judged = features if self.critic_torso is None else self.critic_torso(inputs)
        value = Readout(1, 1.0)(judged)[..., 0]
        return self.head(features), value, memory


class DeterministicActor(nn.Module):
    """tanh(head(torso(s))): an action in [-1, 1] per dimension, to be stretched to the space's bounds. The
    head starts near zero, so that no action starts saturated."""

    torso: nn.Module
    action_size: int

    @nn.compact
    def __call__(self, x: Array) -> Array:  # [N, …] -> [N, A]
        features = self.torso(x)
        return jnp.tanh(Dense(self.action_size, kernel_init=nn.initializers.orthogonal(0.01))(features))


class GaussianActor(nn.Module):
    """Means and logarithms of standard deviations, both functions of the state."""

    torso: nn.Module
    action_size: int
    log_std: float  # at the start

    @nn.compact
    def __call__(self, x: Array) -> Array:  # [N, …] -> [N, 2 A]
        return PolicyHead(2 * self.action_size, True, True, self.log_std)(self.torso(x))
