"""Critics of continuous actions: Q_i(s, a) for several independent networks.

A vector observation and the action enter the first layer side by side (Fujimoto et al. 2018). Images
pass a convolutional torso first, and the action joins its features. Options of SAC's successors: dropout
before each layer norm (DroQ), and batch norm of the inputs and after each activation (CrossQ).
"""

from __future__ import annotations

import chex
import flax.linen as nn
import jax.numpy as jnp

from jaxrl_hpc.networks.dense import Dense, hidden_dense
from jaxrl_hpc.networks.torso import ACTIVATIONS, MLP, NetworkConfig, make_torso
from jaxrl_hpc.types import Array, EnvSpec

STATISTICS = "batch_stats"  # flax's collection of batch norm's running moments
MOMENTUM = 0.99  # of these, per update


class BatchNormMLP(nn.Module):
    """Layers of an MLP with batch norm. `train`: by the moments of this batch, else by the running ones."""

    config: NetworkConfig

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        def norm(x: Array) -> Array:
            layer = nn.BatchNorm(use_running_average=not train, momentum=MOMENTUM, use_fast_variance=False)
            normed: Array = layer(x)
            return normed

        x = norm(x)
        for width in self.config.hidden:
            x = hidden_dense(width, self.config.dtype)(x)
            x = norm(ACTIVATIONS[self.config.activation](x))
        return x


class Critic(nn.Module):
    """One action value per row."""

    config: NetworkConfig
    encoder: nn.Module | None = None
    dropout: float = 0.0
    batch_norm: bool = False

    @nn.compact
    def __call__(self, features: Array, action: Array, train: bool = False) -> Array:  # [N, …], [N, A] -> [N]
        if self.encoder is not None:
            features = self.encoder(features)
        x = jnp.concatenate([features, action], axis=-1)
        if self.batch_norm:
            x = BatchNormMLP(self.config)(x, train)
        else:
            network = self.config
            x = MLP(network.hidden, network.activation, network.layer_norm, self.dropout, network.dtype)(x)
        return Dense(1, kernel_init=nn.initializers.orthogonal(1.0))(x)[..., 0]


class Critics(nn.Module):
    """`count` critics that share nothing."""

    config: NetworkConfig
    spec: EnvSpec
    count: int
    dropout: float = 0.0
    batch_norm: bool = False

    @nn.compact
    def __call__(self, features: Array, action: Array, train: bool = False) -> Array:
        """[N, …], [N, A] -> [count, N]; `train` matters to batch norm."""
        chex.assert_rank(action, 2)
        image = features.ndim == 4
        # a loop, not a vmap: two plain matrix products beat one batched product on a CPU
        return jnp.stack(
            [
                Critic(
                    self.config,
                    make_torso(self.config, self.spec) if image else None,
                    self.dropout,
                    self.batch_norm,
                )(features, action, train)
                for _ in range(self.count)
            ]
        )
