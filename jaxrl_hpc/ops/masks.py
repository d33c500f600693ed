"""Action masks: which of the discrete actions an observation allows.

The mask is the last part of an observation (`EnvSpec.action_mask`), one number per choice, 1 where it is
allowed. So it is included wherever observations are: in replays, messages between ranks, exported policies.
Where a mask allows nothing, as at the end of an episode, everything is allowed.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.types import Array, EnvSpec

FORBIDDEN = -1e9  # far below any value; its exponential is zero, and it stays finite in sums


def allowed(spec: EnvSpec, obs: Array) -> Array | None:
    """[..., choices] bool from observations [..., D]; None where the environment has no masks."""
    if not spec.action_mask:
        return None
    flags = obs[..., -spec.choices :] > 0.5
    ends = np.cumsum(spec.action_sizes or (spec.choices,))[:-1]
    parts = [part | ~part.any(axis=-1, keepdims=True) for part in jnp.split(flags, ends, axis=-1)]
    return jnp.concatenate(parts, axis=-1)


def forbid(values: Array, mask: Array | None) -> Array:
    """Values or logits [..., choices], far below all others where the mask forbids an action."""
    return values if mask is None else jnp.where(mask, values, FORBIDDEN)
