"""Recorded transitions: the contents of a file, and whether an agent can learn from it.

Files are Parquet in the schema of docs/offline.md (`parquet.py`) or HDF5 as Minari and D4RL write it
(`hdf5.py`). Any problem with a file is one UserError that names it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.types import EnvSpec, Transition

__all__ = ["Columns", "Dataset", "behaviour", "check_fits", "from_columns", "open_dataset"]


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
    about: dict[str, Any]  # what else the file says: env, policy

    @property
    def rows(self) -> int:
        return len(self.first)


def open_dataset(path: str | Path) -> Dataset:
    """The transitions of a file: Parquet, HDF5, or `minari:NAME`."""
    if str(path).startswith("minari:") or Path(path).suffix in (".hdf5", ".h5"):
        from jaxrl_hpc.datasets import hdf5

        return hdf5.read(path)
    from jaxrl_hpc.datasets import parquet

    return parquet.read(path)


def from_columns(
    path: str | Path, columns: Columns, spec: EnvSpec | None, about: dict[str, Any] | None = None
) -> Dataset:
    """Checked transitions. Without next observations, an episode's last row is left out unless it terminated,
    since its next observation is unknown."""
    _check_columns(path, columns)
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
    return Dataset(str(path), spec, data, first, about or {})


def _check_columns(path: str | Path, columns: Columns) -> None:
    rows = len(columns.reward)
    if rows == 0:
        raise UserError(f"dataset {path}: it has no rows")
    named = {name: value for name, value in columns._asdict().items() if value is not None}
    for name, value in named.items():
        if len(value) != rows:
            raise UserError(f"dataset {path}: {name} has {len(value):,} rows, and reward has {rows:,}")
        if value.dtype.kind not in "biuf":
            raise UserError(f"dataset {path}: {name} holds {value.dtype}, not numbers")
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            bad = int(np.argmax(~np.isfinite(value.reshape(rows, -1)).all(axis=1)))
            raise UserError(f"dataset {path}: {name} is not a finite number in row {bad:,}; remove such rows")
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
    path, recorded = dataset.path, dataset.about.get("env", {}).get("name", "")
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
