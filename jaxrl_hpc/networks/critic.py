"""Critics of continuous actions: Q_i(s, a) for one or two independent networks.

A vector observation and the action enter the first layer side by side (Fujimoto et al. 2018). Images
pass a convolutional torso first, and the action joins its features.
"""

from __future__ import annotations

import chex
import flax.linen as nn
import jax.numpy as jnp

from jaxrl_hpc.networks.dense import Dense
from jaxrl_hpc.networks.torso import MLP, NetworkConfig, make_torso
from jaxrl_hpc.types import Array, EnvSpec


class Critic(nn.Module):
    """One action value per row."""

    config: NetworkConfig
    encoder: nn.Module | None = None

    @nn.compact
    def __call__(self, features: Array, action: Array) -> Array:  # [N, …], [N, A] -> [N]
        if self.encoder is not None:
            features = self.encoder(features)
        x = jnp.concatenate([features, action], axis=-1)
        x = MLP(self.config.hidden, self.config.activation, self.config.layer_norm)(x)
        return Dense(1, kernel_init=nn.initializers.orthogonal(1.0))(x)[..., 0]


class Critics(nn.Module):
    """`count` critics that share nothing."""

    config: NetworkConfig
    spec: EnvSpec
    count: int

    @nn.compact
    def __call__(self, features: Array, action: Array) -> Array:  # [N, …], [N, A] -> [count, N]
        chex.assert_rank(action, 2)
        image = features.ndim == 4
        # a loop, not a vmap: two plain matrix products beat one batched product on a CPU
        return jnp.stack(
            [
                Critic(self.config, make_torso(self.config, self.spec) if image else None)(features, action)
                for _ in range(self.count)
            ]
        )
