"""Actor-critic networks: a policy head and a value head on one torso or on two, with an optional LSTM
between torso and heads."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp

from jaxrl_hpc.networks.recurrent import LSTM, Carry
from jaxrl_hpc.types import Array


class PolicyHead(nn.Module):
    """Parameters of the action distribution; log_std, if any, is one vector or a function of state."""

    num_outputs: int
    continuous: bool
    state_std: bool
    log_std: float

    @nn.compact
    def __call__(self, features: Array) -> Array:
        # small first outputs: the first policy is close to uniform
        small = nn.initializers.orthogonal(0.01)
        if not self.continuous:
            return nn.Dense(self.num_outputs, kernel_init=small)(features)
        size = self.num_outputs // 2
        mean = nn.Dense(size, kernel_init=small)(features)
        start = nn.initializers.constant(self.log_std)
        if self.state_std:
            log_std = nn.Dense(size, kernel_init=small, bias_init=start)(features)
        else:
            log_std = jnp.broadcast_to(self.param("log_std", start, (size,)), mean.shape)
        return jnp.concatenate([mean, log_std], axis=-1)


class ActorCritic(nn.Module):
    """Observations -> (outputs of the policy [..., P], values [...], memory after each step)."""

    torso: nn.Module
    critic_torso: nn.Module | None  # None: the heads share a torso
    head: nn.Module
    lstm_width: int  # 0: no memory

    @nn.compact
    def __call__(
        self, inputs: Array, carry: Carry | tuple[()], starts: Array | None
    ) -> tuple[Array, Array, Carry | tuple[()]]:
        """Leading axes of inputs are [T, B] with an LSTM and free without; carry then is ()."""
        features = self.torso(inputs)
        memory: Carry | tuple[()] = ()
        if self.lstm_width:
            memory = LSTM(self.lstm_width)(features, carry, starts)
            features = memory.hidden
        judged = features if self.critic_torso is None else self.critic_torso(inputs)
        value = nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0))(judged)[..., 0]
        return self.head(features), value, memory
