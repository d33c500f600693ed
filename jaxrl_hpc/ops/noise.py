"""Exploration noise for continuous actions, one key per environment copy, and action scaling.

Ornstein-Uhlenbeck noise is correlated over time (Uhlenbeck & Ornstein 1930; Lillicrap et al. 2016):

    x' = x - theta x + sigma n,   n ~ N(0, 1)

with its stationary standard deviation sigma / sqrt(2 theta - theta^2).
"""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.types import Array, EnvSpec


def gaussian(key: Array, size: int) -> Array:
    """Standard normal noise [B, size] from keys [B]. Consumes key."""
    chex.assert_rank(key, 1)
    return jax.vmap(lambda k: jax.random.normal(k, (size,)))(key)


def uniform(key: Array, size: int) -> Array:
    """Noise [B, size] in [-1, 1) from keys [B]. Consumes key."""
    chex.assert_rank(key, 1)
    return jax.vmap(lambda k: jax.random.uniform(k, (size,), minval=-1.0, maxval=1.0))(key)


def ornstein_uhlenbeck(state: Array, normal: Array, theta: Array, sigma: Array) -> Array:
    """The next state [B, A] of the process."""
    chex.assert_equal_shape([state, normal])
    return state - theta * state + sigma * normal


class ActionScale(NamedTuple):
    """The affine map between [-1, 1] and the space's true bounds, per dimension."""

    centre: np.ndarray  # [A]
    half: np.ndarray  # [A]
    shape: tuple[int, ...]  # of one action

    def to_env(self, unit: Array) -> Array:
        """[N, A] in [-1, 1] -> [N, *shape]."""
        low, high = self.centre - self.half, self.centre + self.half
        action = jnp.clip(self.centre + self.half * unit, low, high)  # rounding may overshoot
        return action.reshape(-1, *self.shape)

    def to_unit(self, action: Array) -> Array:
        """[N, *shape] -> [N, A]."""
        return (action.reshape(action.shape[0], -1) - self.centre) / self.half


def action_scale(spec: EnvSpec) -> ActionScale:
    """From the bounds of a continuous action space."""
    assert spec.action_low is not None and spec.action_high is not None
    low, high = spec.action_low.reshape(-1), spec.action_high.reshape(-1)
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise UserError(f"env {spec.name!r} has actions without finite bounds: actions cannot be scaled")
    return ActionScale((low + high) / 2, (high - low) / 2, spec.action_shape)
