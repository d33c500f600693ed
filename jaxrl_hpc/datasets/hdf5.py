"""Transitions from HDF5 (extra: datasets, for h5py), in the two common layouts.

D4RL     observations [N, …], actions, rewards, terminals, timeouts; next_observations where there are any
Minari   a group per episode, episode_0 …: observations [T + 1, …], actions, rewards, terminations,
         truncations, each [T]; in <name>/data/main_data.hdf5 below ~/.minari/datasets

Only numbers in the file itself are read: links, virtual datasets and external storage, which could name any
other file, are refused.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl_hpc.datasets import Columns, Dataset, check_declared_size, from_columns
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.read_files import read_json

MINARI_FOLDER = "MINARI_DATASETS_PATH"  # Minari's own variable
PER_STEP = ("rewards", "terminals", "timeouts", "terminations", "truncations")  # [N], or [N, 1]
EPISODE = ("observations", "actions", "rewards", "terminations", "truncations")


def read(path: str | Path) -> Dataset:
    """The transitions of a file, or of the local Minari dataset `minari:NAME`."""
    import h5py

    file = _minari_file(str(path)) if str(path).startswith("minari:") else Path(path)
    if not file.is_file():
        raise UserError(f"dataset {path}: no such file as {file}")
    with h5py.File(file, "r") as found:
        source = _Source(path, found)
        if source.part("episode_0") is None:
            return from_columns(path, _of_d4rl(source), None)
        columns = _of_minari(source, list(found))
    return from_columns(path, columns, None, _environment(path, file.parent / "metadata.json"))


def _minari_file(name: str) -> Path:
    folder = Path(os.environ.get(MINARI_FOLDER, "~/.minari/datasets")).expanduser()
    return folder / name.removeprefix("minari:") / "data" / "main_data.hdf5"


class _Source:
    """An open file, of which nothing is followed elsewhere and nothing is read before its size is known."""

    def __init__(self, path: str | Path, file: Any) -> None:
        self.path, self.file = path, file
        self._declared = 0

    def part(self, *names: str) -> Any:
        """A group or array; None if there is none."""
        import h5py

        found = self.file
        for name in names:
            if not isinstance(found, h5py.Group):
                raise UserError(f"dataset {self.path}: {found.name} is not a group")
            links, key = found.id.links, name.encode()
            if not links.exists(key):
                return None
            if links.get_info(key).type != h5py.h5l.TYPE_HARD:
                self._refuse("/".join(names), "a link")
            found = found[name]
        return found

    def _refuse(self, name: str, what: str) -> None:
        raise UserError(f"dataset {self.path}: {name} is {what}; only numbers in the file itself are read")

    def _array(self, *names: str) -> Any:
        """An array that is not read yet."""
        import h5py

        found, name = self.part(*names), "/".join(names)
        if found is None:
            raise UserError(f"dataset {self.path}: it has no {name}; the layouts of D4RL and Minari are read")
        if not isinstance(found, h5py.Dataset):
            raise UserError(
                f"dataset {self.path}: {name} has several parts; only single arrays are supported"
            )
        if found.is_virtual or found.external:
            self._refuse(name, "kept in other files")
        if not found.shape:
            raise UserError(f"dataset {self.path}: {name} is not an array")
        if found.dtype.kind not in "biuf":
            raise UserError(f"dataset {self.path}: {name} holds {found.dtype}, not numbers")
        self._declared += found.size * found.dtype.itemsize
        return found

    def arrays(self, names: Sequence[str], group: tuple[str, ...] = (), later: int = 0) -> list[np.ndarray]:
        """Arrays of a group, with the same number of steps, and `later` observations more. What a file
        declares is checked before any of it is read."""
        found = {name: self._array(*group, name) for name in names}
        steps = {
            name: x.size if name in PER_STEP else x.shape[0] - (later if name == "observations" else 0)
            for name, x in found.items()
        }
        if len(set(steps.values())) > 1:
            shown = ", ".join(f"{name} {number:,}" for name, number in steps.items())
            where = f" of {'/'.join(group)}" if group else ""
            raise UserError(f"dataset {self.path}: arrays{where} have different numbers of steps ({shown})")
        check_declared_size(self.path, self._declared)
        return [x[()].reshape(-1) if name in PER_STEP else x[()] for name, x in found.items()]


def _of_d4rl(source: _Source) -> Columns:
    names = ["observations", "actions", "rewards", "terminals"]
    more = [name for name in ("timeouts", "next_observations") if source.part(name) is not None]
    found = dict(zip(names + more, source.arrays(names + more), strict=True))
    terminated = found["terminals"].astype(bool)
    truncated = found.get("timeouts", np.zeros(len(terminated))).astype(bool)
    ended = terminated | truncated
    return Columns(
        obs=found["observations"],
        action=found["actions"],
        reward=found["rewards"],
        terminated=terminated,
        truncated=truncated,
        episode=np.cumsum(np.append(0, ended[:-1])),
        next_obs=found.get("next_observations"),
    )


def _of_minari(source: _Source, names: list[str]) -> Columns:
    parts: list[Columns] = []
    groups = sorted(name for name in names if name.startswith("episode_"))
    for name in groups:
        if not re.fullmatch(r"episode_[0-9]{1,18}", name):
            raise UserError(
                f"dataset {source.path}: {name[:40]!r} is no name of an episode (episode_0, episode_1, …)"
            )
    for number, name in enumerate(sorted(groups, key=lambda name: int(name.removeprefix("episode_")))):
        obs, action, reward, ended, cut = source.arrays(EPISODE, group=(name,), later=1)
        ends = ended.astype(bool), cut.astype(bool)
        parts.append(Columns(obs[:-1], action, reward, *ends, np.full(len(reward), number), obs[1:]))
    try:
        return Columns(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    except ValueError:
        raise UserError(
            f"dataset {source.path}: episodes have observations or actions of different shapes"
        ) from None


def _environment(path: str | Path, metadata: Path) -> str:
    """The name of a Minari dataset's environment, from the metadata beside the data; empty if unknown."""
    if not metadata.is_file():
        return ""
    found = read_json(metadata)
    try:
        spec = found.get("env_spec") or {}
        name = (json.loads(spec) if isinstance(spec, str) else spec).get("id", "")
    except (AttributeError, ValueError, RecursionError):
        name = None
    if not isinstance(name, str):
        raise UserError(f"dataset {path}: {metadata} is damaged: env_spec does not describe an environment")
    return name
