"""The interface of external simulators: B copies that reset themselves in the same step.

Libraries differ in when a finished copy restarts. Their adapters all behave like this: `obs` is what to act
on next, `final_obs` the observation before any reset, and no step is spent on resetting. So every step is a
transition.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

import numpy as np

from jaxrl_hpc.schema import ComponentConfig, static
from jaxrl_hpc.types import EnvSpec
from jaxrl_hpc.user_code import in_one_line as in_one_line

FAULTS = (Exception, SystemExit, KeyboardInterrupt)  # a simulator that tries to end the process has failed


class ExternalConfig(ComponentConfig):
    """Settings of all external environments."""

    on_error: Literal["stop", "reset"] = static(
        "stop",
        "if a copy raises, hangs or returns invalid values: stop the run, or drop its episode and continue",
    )
    deadline_seconds: float = static(120.0, "time limit of a step of all copies", gt=0)


class StepOutcome(NamedTuple):
    """One step of B copies. Rows of copies in `troubles` mean nothing."""

    obs: np.ndarray  # [B, *obs_shape] to act on next
    final_obs: np.ndarray  # [B, *obs_shape] before any reset
    reward: np.ndarray  # [B] float32
    terminated: np.ndarray  # [B] bool
    truncated: np.ndarray  # [B] bool
    troubles: dict[int, str]  # copy -> what went wrong with it, as "raised ValueError: …"


class Simulator(Protocol):
    """B copies of one environment. Called from one thread only, always the same."""

    busy: int | None  # the copy at work or at fault, if known
    restarts_alone: bool  # copies can be restarted without the others

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        """Restart all copies, with seeds [B] uint32 -> obs [B, *obs_shape]."""

    def step(self, action: np.ndarray) -> StepOutcome:
        """One step of all copies, action [B, …]."""

    def restart(self, copies: list[int], seeds: np.ndarray) -> np.ndarray:
        """Restart copies that failed; seeds [K] -> obs [K, *obs_shape]."""

    def close(self) -> None: ...


class Wrong(Exception):
    """A simulator returned an invalid value; the text continues after 'copy 3 of env X '."""


def _array(value: object, what: str) -> np.ndarray:
    try:
        return np.asarray(value)
    except Exception:  # ragged lists, or errors of the object's conversion
        raise Wrong(f"returned {what} that is not an array") from None


def _cast(array: np.ndarray, dtype: np.dtype, what: str) -> np.ndarray:
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise Wrong(f"returned {what} of type {array.dtype} instead of {dtype}")
    with np.errstate(over="ignore", invalid="ignore"):  # overflows are detected below
        return array.astype(dtype, copy=False)


def _unusable(given: np.ndarray, cast: np.ndarray) -> np.ndarray:
    """Where numbers are not finite, or did not survive the cast."""
    if cast.dtype.kind == "f":
        return ~np.isfinite(cast)
    return np.zeros(given.shape, bool) if given.dtype == cast.dtype else given != cast


def conform(value: object, shape: tuple[int, ...], dtype: np.dtype, what: str) -> np.ndarray:
    """The value as an array of this shape and type, or Wrong."""
    array = _array(value, what)
    if array.shape != shape:
        raise Wrong(f"returned {what} of shape {array.shape} instead of {shape}")
    found = _cast(array, dtype, what)
    unusable = _unusable(array, found)
    if unusable.any():
        bad = array[unusable]
        kind = "infinite" if bad.dtype.kind == "f" and np.isinf(bad).any() else f"too large for {dtype}"
        raise Wrong(f"returned {what} that is {'NaN' if (bad != bad).any() else kind}")
    return found


def conform_rows(
    values: object, spec: EnvSpec, copies: int, reward: object, troubles: dict[int, str]
) -> tuple[np.ndarray, np.ndarray]:
    """Observations [B, …] and rewards [B] of a library that steps all copies at once; NaN by copy."""
    found = []
    for what, value, shape, dtype in (
        ("observation", values, spec.obs_shape, spec.obs_dtype),
        ("reward", reward, (), np.dtype(np.float32)),
    ):
        array = _array(value, f"{what}s")
        if array.shape != (copies, *shape):
            raise Wrong(f"returned {what}s of shape {array.shape} instead of {(copies, *shape)}")
        found.append(_cast(array, dtype, f"{what}s"))
        bad = _unusable(array, found[-1]).reshape(copies, -1).any(axis=1)
        name = "an observation" if what == "observation" else "a reward"
        reason = "not finite" if found[-1].dtype.kind == "f" else f"too large for {dtype}"
        troubles.update({int(i): f"returned {name} that is {reason}" for i in np.flatnonzero(bad)})
    return found[0], found[1]


def conform_flag(value: object, what: str) -> bool:
    """Whether an episode has ended, or Wrong for anything that is not a boolean."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    array = _array(value, what)
    if array.shape != () or array.dtype.kind not in "biuf" or array not in (0, 1):
        raise Wrong(f"returned {what} = {str(value)[:40]!r} instead of True or False")
    return bool(array)


def conform_flags(values: object, copies: int, what: str, troubles: dict[int, str]) -> np.ndarray:
    """The same for all copies at once -> [B] bool."""
    array = _array(values, what)
    if array.shape != (copies,):
        raise Wrong(f"returned {what} of shape {array.shape} instead of {(copies,)}")
    if array.dtype == np.bool_:
        return array.copy()
    flags = np.zeros(copies, bool)
    for i, value in enumerate(array):
        try:
            flags[i] = conform_flag(value, what)
        except Wrong as wrong:
            troubles[i] = str(wrong)
    return flags


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
    return f"raised {in_one_line(error)}{where}"
