"""Recorded transitions: the contents of a file, and whether an agent can learn from it.

Files are Parquet in the schema of docs/offline.md (`parquet.py`) or HDF5 as Minari and D4RL write it
(`hdf5.py`). Whatever is wrong with a file, `open_dataset` raises one UserError that names it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import psutil

from jaxrl_hpc.errors import UserError, os_error_sentence
from jaxrl_hpc.types import EnvSpec, Transition

__all__ = ["Columns", "Dataset", "behaviour", "check_fits", "from_columns", "open_dataset"]

MAX_ACTIONS = 1_000_000  # discrete ones: a network has an output for each


class Columns(NamedTuple):
    """The columns of a file, in order of time within each episode."""

    obs: np.ndarray  # [N, *obs_shape]
    action: np.ndarray  # [N] whole numbers, or [N, *action_shape]
    reward: np.ndarray  # [N]
    terminated: np.ndarray  # [N] bool
    truncated: np.ndarray  # [N] bool
    episode: np.ndarray  # [N] whole numbers: neighbours that differ belong to different episodes
    next_obs: np.ndarray | None  # [N, *obs_shape]; None: the observation of the row after


class Dataset(NamedTuple):
    """Transitions in memory."""

    path: str
    spec: EnvSpec  # of the environment, or as far as the data shows it
    data: Transition  # NumPy arrays [N, …], extras ()
    first: np.ndarray  # [N] bool: an episode begins here
    recorded_in: str  # the environment's name, as the file has it; empty if it has none

    @property
    def rows(self) -> int:
        return len(self.first)


def open_dataset(path: str | Path) -> Dataset:
    """The transitions of a file: Parquet, HDF5, or `minari:NAME`."""
    if str(path).startswith("minari:") or Path(path).suffix in (".hdf5", ".h5"):
        from jaxrl_hpc.datasets import hdf5

        with _damage_told(path, "HDF5"):
            return hdf5.read(path)
    from jaxrl_hpc.datasets import parquet

    with _damage_told(path, "Parquet"):
        return parquet.read(path)


@contextlib.contextmanager
def _damage_told(path: str | Path, kind: str) -> Iterator[None]:
    """Libraries that read damaged files raise exceptions of any type: they become one UserError."""
    try:
        yield
    except (UserError, ModuleNotFoundError):  # the latter: a missing extra
        raise
    except Exception as error:
        reason = f"{error}" or type(error).__name__
        if isinstance(error, OSError) and error.strerror:
            reason = os_error_sentence(error)
        line = " ".join(reason.split())[:300]
        raise UserError(
            f"dataset {path}: it is not a readable {kind} file, or only a part of one ({line})"
        ) from error


def check_declared_size(path: str | Path, declared: int) -> None:
    """Refuse arrays that a file declares, in bytes, before any of them is allocated."""
    if 2 * declared > (free := psutil.virtual_memory().available):  # while they are put in order, twice
        raise UserError(
            f"dataset {path}: it declares {declared / 2**30:,.1f} GiB of numbers, too many for the "
            f"{free / 2**30:.1f} GiB of memory that are free"
        )


def from_columns(path: str | Path, columns: Columns, spec: EnvSpec | None, recorded_in: str = "") -> Dataset:
    """Checked transitions. Without next observations, an episode's last row is left out unless it terminated,
    since its next observation is unknown."""
    _check_columns(path, columns)
    if columns.action.dtype.kind in "iu" and (spec is None or spec.discrete):
        low, high = int(columns.action.min()), int(columns.action.max())
        if low < 0 or high >= MAX_ACTIONS:
            raise UserError(
                f"dataset {path}: actions go from {low} to {high}; whole numbers from 0 to "
                f"{MAX_ACTIONS - 1:,} are supported"
            )
    terminated, truncated = columns.terminated.astype(bool), columns.truncated.astype(bool)
    changes = columns.episode[1:] != columns.episode[:-1]
    last = terminated | truncated
    last[:-1] |= changes
    last[-1] = True  # nothing continues it
    next_obs = columns.next_obs
    kept = np.ones(len(last), bool)
    if next_obs is None:
        next_obs = np.concatenate([columns.obs[1:], columns.obs[-1:]])
        kept = ~last | terminated
        before = np.append(~kept[1:], False)  # the row before a dropped one now ends its part
        last = last | before
    if not kept.any():
        raise UserError(
            f"dataset {path}: no row is followed by another of its episode; is column episode right?"
        )
    spec = spec or _seen_spec(path, columns, last)
    discrete = spec.discrete
    if discrete and columns.action.dtype.kind not in "iu":
        raise UserError(f"dataset {path}: actions are discrete, but they hold {columns.action.dtype}")
    if spec.obs_dtype.kind != "f" and columns.obs.dtype != spec.obs_dtype:
        raise UserError(
            f"dataset {path}: observations hold {columns.obs.dtype}, but should be {spec.obs_dtype}"
        )
    arrays: dict[str, Any] = {
        "obs": columns.obs.astype(spec.obs_dtype, copy=False),
        "action": columns.action.astype(np.int32 if discrete else np.float32, copy=False),
        "reward": columns.reward.astype(np.float32, copy=False),
        "discount": 1.0 - terminated.astype(np.float32),
        "last": last,
        "next_obs": next_obs.astype(spec.obs_dtype, copy=False),
    }
    data = Transition(**arrays, extras=())
    first = np.append(True, (columns.terminated | columns.truncated)[:-1].astype(bool) | changes)
    if not kept.all():
        data, first = jax.tree.map(lambda leaf: leaf[kept], (data, first))
    return Dataset(str(path), spec, data, first, recorded_in)


def _check_columns(path: str | Path, columns: Columns) -> None:
    named = {name: value for name, value in columns._asdict().items() if value is not None}
    for name, value in named.items():
        if value.dtype.kind not in "biuf":
            raise UserError(f"dataset {path}: {name} holds {value.dtype}, not numbers")
        if value.ndim == 0 or (value.ndim > 1 and name in ("reward", "terminated", "truncated", "episode")):
            raise UserError(f"dataset {path}: {name} has shape {value.shape}; one number per row is needed")
    rows = len(columns.reward)
    if rows == 0:
        raise UserError(f"dataset {path}: it has no rows")
    for name, value in named.items():
        if len(value) != rows:
            raise UserError(f"dataset {path}: {name} has {len(value):,} rows, and reward has {rows:,}")
        if value.size == 0:
            raise UserError(f"dataset {path}: {name} has no numbers, its shape is {value.shape}")
        if value.dtype.kind == "f":
            with np.errstate(over="ignore"):
                finite = np.isfinite(value.astype(np.float32, copy=False)).reshape(rows, -1).all(axis=1)
            if not finite.all():
                bad = int(np.argmin(finite))
                raise UserError(
                    f"dataset {path}: {name} is not a finite number in row {bad:,}; remove such rows"
                )
    if columns.next_obs is not None and columns.next_obs.shape != columns.obs.shape:
        raise UserError(
            f"dataset {path}: next observations have shape {columns.next_obs.shape[1:]}, observations "
            f"{columns.obs.shape[1:]}"
        )


def _seen_spec(path: str | Path, columns: Columns, last: np.ndarray) -> EnvSpec:
    """The spec for a file that does not describe its environment: shapes and bounds of the data."""
    ends = np.flatnonzero(last)
    longest = int(np.diff(ends, prepend=-1).max())
    obs_dtype = np.dtype(np.uint8 if columns.obs.dtype == np.uint8 else np.float32)
    name, shape = Path(path).name, columns.obs.shape[1:]
    if columns.action.dtype.kind in "iu":
        if columns.action.ndim > 1:
            raise UserError(
                f"dataset {path}: actions are vectors of whole numbers; numbers or floats are supported"
            )
        return EnvSpec(name, shape, obs_dtype, int(columns.action.max()) + 1, (), None, None, longest)
    action = columns.action
    # bounds of ±1 are usual; data beyond them widens the bounds
    low, high = np.minimum(action.min(axis=0), -1.0), np.maximum(action.max(axis=0), 1.0)
    low, high = low.astype(np.float32), high.astype(np.float32)
    return EnvSpec(name, shape, obs_dtype, None, action.shape[1:], low, high, longest)


def check_fits(dataset: Dataset, spec: EnvSpec) -> None:
    """Refuse a dataset of another environment than the one with this spec."""
    path, recorded = dataset.path, dataset.recorded_in
    if recorded and recorded != spec.name:
        raise UserError(f"dataset {path}: it was recorded in {recorded}, but the config's env is {spec.name}")
    found = dataset.data
    if found.obs.shape[1:] != spec.obs_shape:
        raise UserError(
            f"dataset {path}: observations have shape {found.obs.shape[1:]}, but {spec.name} has "
            f"{spec.obs_shape}"
        )
    kinds = ["discrete" if one.discrete else "continuous" for one in (dataset.spec, spec)]
    if kinds[0] != kinds[1]:
        raise UserError(f"dataset {path}: actions are {kinds[0]}, but those of {spec.name} are {kinds[1]}")
    if spec.action_sizes:
        raise UserError(
            f"dataset {path}: {spec.name} has actions of several choices, which no agent with a replay takes"
        )
    if spec.num_actions is not None:
        low, high = int(found.action.min()), int(found.action.max())
        if low < 0 or high >= spec.num_actions:
            raise UserError(
                f"dataset {path}: actions go from {low} to {high}, but those of {spec.name} from 0 to "
                f"{spec.num_actions - 1}"
            )
        return
    if found.action.shape[1:] != spec.action_shape:
        raise UserError(
            f"dataset {path}: actions have shape {found.action.shape[1:]}, but {spec.name} has "
            f"{spec.action_shape}"
        )
    assert spec.action_low is not None and spec.action_high is not None
    slack = 1e-3 * (spec.action_high - spec.action_low)
    if (found.action < spec.action_low - slack).any() or (found.action > spec.action_high + slack).any():
        raise UserError(
            f"dataset {path}: actions go from {found.action.min():.4g} to {found.action.max():.4g}, beyond "
            f"the bounds of {spec.name}"
        )


def behaviour(dataset: Dataset) -> dict[str, float]:
    """Mean return of complete recorded episodes, and their number."""
    number = np.cumsum(dataset.first) - 1
    returns = np.bincount(number, weights=dataset.data.reward)
    lengths = np.bincount(number)
    ends = np.flatnonzero(np.append(dataset.first[1:], True))
    # an episode that was cut is shorter than the limit without having terminated
    whole = (dataset.data.discount[ends] == 0) | (lengths >= dataset.spec.max_episode_steps)
    return {
        "episodes": float(whole.sum()),
        "return": float(returns[whole].mean()) if whole.any() else float("nan"),
    }
