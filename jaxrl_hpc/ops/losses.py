"""Element-wise losses and value gathers."""

from __future__ import annotations

import chex
import jax.numpy as jnp

from jaxrl_hpc.types import Array


def huber(error: Array, delta: Array | float = 1.0) -> Array:
    """Quadratic within delta of zero, linear beyond: 0.5 e^2 or delta (|e| - delta/2)."""
    size = jnp.abs(error)
    inner = jnp.minimum(size, delta)
    return 0.5 * inner**2 + delta * (size - inner)


def select_action(values: Array, action: Array) -> Array:
    """values[..., action] for integer actions: [..., A] and [...] -> [...]."""
    chex.assert_rank(values, action.ndim + 1)
    return jnp.take_along_axis(values, action[..., None], axis=-1)[..., 0]
