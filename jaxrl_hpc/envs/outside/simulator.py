"""What the bridge asks of an outside simulator: B copies that reset themselves in the same step.

Libraries differ in when a finished copy starts again. Whatever a library does, its adapter answers like
this: `obs` is what to act on next, `final_obs` what the step led to before any reset, and no step is spent on
resetting. So a step is a transition, always.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

import numpy as np

from jaxrl_hpc.schema import Schema, static
from jaxrl_hpc.types import EnvSpec


class OutsideConfig(Schema):
    """What all outside environments have in common."""

    on_error: Literal["stop", "reset"] = static(
        "stop", "a copy that raises, hangs or returns nonsense: stop the run, or drop its episode and go on"
    )
    deadline_seconds: float = static(120.0, "longest time that a step of all copies may take", gt=0)


class Outcome(NamedTuple):
    """One step of B copies. Rows of copies in `troubles` mean nothing."""

    obs: np.ndarray  # [B, *obs_shape] to act on next
    final_obs: np.ndarray  # [B, *obs_shape] before any reset
    reward: np.ndarray  # [B] float32
    terminated: np.ndarray  # [B] bool
    truncated: np.ndarray  # [B] bool
    troubles: dict[int, str]  # copy -> what went wrong with it, as "raised ValueError: …"


class Simulator(Protocol):
    """B copies of one environment. Called from one thread only, always the same."""

    busy: int | None  # the copy at work or at fault, where that is known: who is to blame
    restarts_alone: bool  # copies can be restarted without the others

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        """Starts all copies anew, with seeds [B] uint32 -> obs [B, *obs_shape]."""

    def step(self, action: np.ndarray) -> Outcome:
        """One step of all copies, action [B, …]."""

    def restart(self, copies: list[int], seeds: np.ndarray) -> np.ndarray:
        """Starts some copies anew that got into trouble; seeds [K] -> obs [K, *obs_shape]."""

    def close(self) -> None: ...


class Wrong(Exception):
    """What a simulator returned cannot be used; the text goes on after 'copy 3 of env X '."""


def conform(value: object, shape: tuple[int, ...], dtype: np.dtype, what: str) -> np.ndarray:
    """The value as an array of this shape and type, or Wrong."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise Wrong(f"returned {what} that is no array") from None
    if array.shape != shape:
        raise Wrong(f"returned {what} of shape {array.shape} instead of {shape}")
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise Wrong(f"returned {what} of type {array.dtype} instead of {dtype}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise Wrong(f"returned {what} that is {'NaN' if np.isnan(array).any() else 'infinite'}")
    return array.astype(dtype, copy=False)


def conform_rows(
    values: np.ndarray, spec: EnvSpec, reward: np.ndarray, troubles: dict[int, str]
) -> tuple[np.ndarray, np.ndarray]:
    """Observations [B, …] and rewards [B] of a library that steps all copies at once; NaN by copy."""
    copies = len(reward)
    found = np.asarray(values)
    if found.shape != (copies, *spec.obs_shape):
        raise Wrong(f"returned observations of shape {found.shape} instead of {(copies, *spec.obs_shape)}")
    if not np.can_cast(found.dtype, spec.obs_dtype, "same_kind"):
        raise Wrong(f"returned observations of type {found.dtype} instead of {spec.obs_dtype}")
    if found.dtype.kind == "f":
        bad = ~np.isfinite(found.reshape(copies, -1)).all(axis=1)
        troubles.update({int(i): "returned an observation that is not finite" for i in np.flatnonzero(bad)})
    bad = ~np.isfinite(np.asarray(reward, np.float64))
    troubles.update({int(i): "returned a reward that is not finite" for i in np.flatnonzero(bad)})
    return found.astype(spec.obs_dtype, copy=False), np.asarray(reward).astype(np.float32, copy=False)


def describe_exception(error: BaseException) -> str:
    """'raised ValueError: text (file.py line 3)'."""
    if isinstance(error, Wrong):
        return str(error)
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = ""
    if frame is not None:
        where = f" ({frame.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]} line {frame.tb_lineno})"
    return f"raised {type(error).__name__}: {str(error).strip() or 'no message'}{where}"
