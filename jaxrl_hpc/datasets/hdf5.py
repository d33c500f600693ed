"""Transitions from HDF5 (extra: datasets, for h5py), in the two common layouts.

D4RL     observations [N, …], actions, rewards, terminals, timeouts; next_observations where there are any
Minari   a group per episode, episode_0 …: observations [T + 1, …], actions, rewards, terminations,
         truncations, each [T]; in <name>/data/main_data.hdf5 below ~/.minari/datasets
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl_hpc.datasets import Columns, Dataset, from_columns
from jaxrl_hpc.errors import UserError

MINARI_FOLDER = "MINARI_DATASETS_PATH"  # Minari's own variable


def read(path: str | Path) -> Dataset:
    """The transitions of a file, or of the local Minari dataset `minari:NAME`."""
    import h5py

    file = _minari_file(str(path)) if str(path).startswith("minari:") else Path(path)
    if not file.is_file():
        raise UserError(f"dataset {path}: no such file as {file}")
    try:
        with h5py.File(file, "r") as found:
            columns = _of_minari(path, found) if "episode_0" in found else _of_d4rl(path, found)
            about = {} if "episode_0" not in found else _about_minari(file)
    except OSError as error:
        raise UserError(
            f"dataset {path}: it is not a readable HDF5 file, or only a part of one ({error})"
        ) from error
    return from_columns(path, columns, None, about)


def _minari_file(name: str) -> Path:
    folder = Path(os.environ.get(MINARI_FOLDER, "~/.minari/datasets")).expanduser()
    return folder / name.removeprefix("minari:") / "data" / "main_data.hdf5"


def _values(path: str | Path, group: Any, name: str) -> np.ndarray:
    import h5py

    if name not in group:
        raise UserError(
            f"dataset {path}: {group.name} has no {name}; the layouts of D4RL and Minari are read"
        )
    if not isinstance(group[name], h5py.Dataset):
        raise UserError(f"dataset {path}: {name} has several parts; only single arrays are supported")
    values: np.ndarray = group[name][()]
    return values


def _of_d4rl(path: str | Path, file: Any) -> Columns:
    names = ("observations", "actions", "rewards", "terminals")
    obs, action, reward, terminated = (_values(path, file, name) for name in names)
    truncated = _values(path, file, "timeouts") if "timeouts" in file else np.zeros(len(reward), bool)
    next_obs = _values(path, file, "next_observations") if "next_observations" in file else None
    reward, terminated, truncated = (x.reshape(-1) for x in (reward, terminated, truncated))
    ended = (terminated.astype(bool) | truncated.astype(bool))[: len(reward)]
    episode = np.cumsum(np.append(0, ended[:-1]))[: len(reward)]
    return Columns(obs, action, reward, terminated.astype(bool), truncated.astype(bool), episode, next_obs)


def _of_minari(path: str | Path, file: Any) -> Columns:
    parts: list[Columns] = []
    groups = sorted(
        (name for name in file if name.startswith("episode_")), key=lambda n: int(n.split("_")[1])
    )
    for number, name in enumerate(groups):
        group = file[name]
        obs, action, reward = (_values(path, group, key) for key in ("observations", "actions", "rewards"))
        ended, cut = (_values(path, group, key).astype(bool) for key in ("terminations", "truncations"))
        length = len(reward)
        if len(obs) != length + 1:
            raise UserError(
                f"dataset {path}: {name} has {len(obs)} observations of {length} steps, not {length + 1}"
            )
        parts.append(Columns(obs[:-1], action, reward, ended, cut, np.full(length, number), obs[1:]))
    try:
        return Columns(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    except ValueError:
        raise UserError(
            f"dataset {path}: episodes have observations or actions of different shapes"
        ) from None


def _about_minari(file: Path) -> dict[str, Any]:
    """The name of the environment, from the metadata beside the data."""
    try:
        found = json.loads((file.parent / "metadata.json").read_text())
        spec = found.get("env_spec") or "{}"
        name = (json.loads(spec) if isinstance(spec, str) else spec).get("id", "")
    except (OSError, ValueError, AttributeError):
        return {}
    return {"env": {"name": name}} if name else {}
