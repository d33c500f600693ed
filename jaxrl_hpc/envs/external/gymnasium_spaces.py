"""Gymnasium's spaces as an `EnvSpec`, and our actions in the library's format."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxrl_hpc.envs import layout
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.types import EnvSpec, Part

WITHOUT_LIMIT = 10_000  # steps that an evaluation waits for an episode that has no time limit


def observation_type(dtype: np.dtype) -> np.dtype:
    """Our dtype: bytes and flags unchanged, other numbers in 32 bits."""
    if dtype in (np.dtype(np.uint8), np.dtype(np.bool_)):
        return np.dtype(dtype)
    return np.dtype(np.float32 if dtype.kind == "f" else np.int32)


def spec_of(
    name: str, observations: Any, actions: Any, limit: int | None, parts: tuple[Part, ...] = ()
) -> EnvSpec:
    """From single spaces (of one copy); `parts` are those of a flattened observation."""
    from gymnasium import spaces

    if not isinstance(observations, spaces.Box):
        raise UserError(
            f"env {name!r} has observations of type {type(observations).__name__}; "
            "vector environments need a Box"
        )
    shape, dtype = tuple(observations.shape), observation_type(np.dtype(observations.dtype))
    steps = limit or WITHOUT_LIMIT
    if isinstance(actions, spaces.Discrete):
        spec = EnvSpec(name, shape, dtype, int(actions.n), (), None, None, steps, layout=parts)
        return layout.with_mask(spec)
    if isinstance(actions, spaces.MultiDiscrete) and actions.nvec.ndim == 1:
        sizes = tuple(int(n) for n in actions.nvec)
        spec = EnvSpec(name, shape, dtype, None, (len(sizes),), None, None, steps, (), sizes, parts)
        return layout.with_mask(spec)
    if not isinstance(actions, spaces.Box):
        raise UserError(
            f"env {name!r} has actions of type {type(actions).__name__}; Discrete, MultiDiscrete of one axis "
            "and Box are supported"
        )
    low, high = (np.asarray(x, np.float32) for x in (actions.low, actions.high))
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise UserError(
            f"env {name!r} has actions without bounds; wrap it in gymnasium.wrappers.RescaleAction "
            "or give its action space bounds"
        )
    spec = EnvSpec(name, shape, dtype, None, tuple(actions.shape), low, high, steps, layout=parts)
    return layout.with_mask(spec)


def to_library(actions: Any, batch: np.ndarray) -> np.ndarray:
    """Our actions [B, …] in the library's numbering and type; `actions` is the single space."""
    from gymnasium import spaces

    if isinstance(actions, spaces.Discrete):
        return batch.astype(np.int64) + int(actions.start)
    if isinstance(actions, spaces.MultiDiscrete):
        return (batch + actions.start).astype(actions.dtype)
    return np.clip(batch, actions.low, actions.high).astype(actions.dtype)
