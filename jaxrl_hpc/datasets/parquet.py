"""Transitions as Parquet: one row per step.

    observation         fixed_size_list<float or uint8>, flattened in C order
    action              int32, or fixed_size_list<float>
    reward              float
    terminated          bool: the environment ended the episode
    truncated           bool: a time limit or the recorder cut the episode
    episode             int64, the same in all steps of an episode; optional if there are next observations
    next_observation    as observation, before any reset; optional: else the row after, within the episode

The key `jaxrl_hpc` of the schema's metadata holds JSON: the environment's name and settings, its spec
(shapes, types, bounds, time limit) and the policy. Without it, shapes and bounds are taken from the data.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jaxrl_hpc.datasets import Columns, Dataset, from_columns
from jaxrl_hpc.errors import UserError, os_error_sentence
from jaxrl_hpc.types import EnvSpec

KEY = b"jaxrl_hpc"
FORMAT = 1
NEEDED = ("observation", "action", "reward", "terminated", "truncated")


def write(path: str | Path, columns: Columns, spec: EnvSpec, about: dict[str, Any]) -> None:
    """Save transitions. `about` has the environment's settings (`env`) and other metadata."""
    table = {
        "observation": _vectors(columns.obs),
        "action": _vectors(columns.action) if columns.action.ndim > 1 else pa.array(columns.action),
        "reward": pa.array(columns.reward),
        "terminated": pa.array(columns.terminated),
        "truncated": pa.array(columns.truncated),
        "episode": pa.array(columns.episode),
    }
    if columns.next_obs is not None:
        table["next_observation"] = _vectors(columns.next_obs)
    text = json.dumps({"format": FORMAT, "spec": _spec_to_json(spec), **about})
    found = pa.table(table).replace_schema_metadata({KEY: text.encode()})
    part = Path(f"{path}.part")
    try:
        pq.write_table(found, str(part), compression="zstd", row_group_size=65_536, write_page_checksum=True)
        part.replace(path)  # a file under its final name is complete
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        reason = str(error).splitlines()[0] if error.strerror is None else os_error_sentence(error)
        raise UserError(f"cannot write {path}: {reason}") from error


def read(path: str | Path) -> Dataset:
    """The transitions of a file; UserError if it is invalid."""
    if not Path(path).is_file():
        raise UserError(f"dataset {path}: no such file; `jaxrl-hpc record RUN --out FILE` writes one")
    try:
        table = pq.read_table(str(path), page_checksum_verification=True).combine_chunks()
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"dataset {path}: it is not a readable Parquet file, or only a part of one ({reason})"
        ) from error
    missing = [name for name in NEEDED if name not in table.column_names]
    has_next = "next_observation" in table.column_names
    if "episode" not in table.column_names and not has_next:
        missing.append("episode (or next_observation)")
    if missing:
        raise UserError(
            f"dataset {path}: missing column {', '.join(missing)}; docs/offline.md has the schema"
        )
    about = _about(path, table)
    spec = _spec_of_json(path, about.pop("spec", None))
    shape = spec.obs_shape if spec else None
    rows = table.num_rows
    columns = Columns(
        obs=_array(path, table, "observation", shape),
        action=_array(path, table, "action", spec.action_shape if spec else None),
        reward=_array(path, table, "reward", ()),
        terminated=_array(path, table, "terminated", ()),
        truncated=_array(path, table, "truncated", ()),
        episode=_array(path, table, "episode", ())
        if "episode" in table.column_names
        else np.zeros(rows, int),
        next_obs=_array(path, table, "next_observation", shape) if has_next else None,
    )
    return from_columns(path, columns, spec, about)


def _vectors(values: np.ndarray) -> pa.Array:
    """[N, …] as a list of fixed size per row."""
    flat = np.ascontiguousarray(values).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), values.size // max(len(values), 1))


def _array(path: str | Path, table: pa.Table, name: str, shape: tuple[int, ...] | None) -> np.ndarray:
    """A column as [N, *shape]; without a shape: unchanged."""
    column = table[name]
    values = column.chunk(0) if column.num_chunks else pa.array([], column.type)
    if values.null_count:
        raise UserError(
            f"dataset {path}: column {name} has {values.null_count:,} empty entries; remove such rows"
        )
    rows = len(values)
    if pa.types.is_fixed_size_list(values.type) or pa.types.is_list(values.type):
        inside = values.flatten()
        if inside.null_count or (rows and len(inside) % rows):
            raise UserError(
                f"dataset {path}: column {name} has lists of different lengths or with empty entries"
            )
        if pa.types.is_list(values.type) and rows and len(set(np.diff(values.offsets.to_numpy()))) > 1:
            raise UserError(f"dataset {path}: column {name} has lists of different lengths")
        found = inside.to_numpy(zero_copy_only=False).reshape(rows, -1) if rows else np.zeros((0, 1))
    else:
        found = values.to_numpy(zero_copy_only=False)
    if shape is None:
        return found
    try:
        return found.reshape(rows, *shape)
    except ValueError:
        size = found.size // max(rows, 1)
        raise UserError(
            f"dataset {path}: column {name} has {size} numbers per row, its shape is {shape}"
        ) from None


def _about(path: str | Path, table: pa.Table) -> dict[str, Any]:
    text = (table.schema.metadata or {}).get(KEY)
    if text is None:
        return {}
    try:
        about: dict[str, Any] = json.loads(text)
        number = about.pop("format")
    except (ValueError, KeyError, AttributeError):
        raise UserError(f"dataset {path}: its description (metadata jaxrl_hpc) is damaged") from None
    if number != FORMAT:
        raise UserError(f"dataset {path}: it has format {number}, this version reads {FORMAT}")
    return about


def _spec_to_json(spec: EnvSpec) -> dict[str, Any]:
    bounds = {
        name: None if value is None else np.asarray(value, np.float64).tolist()
        for name, value in (("action_low", spec.action_low), ("action_high", spec.action_high))
    }
    return spec._asdict() | {"obs_dtype": str(spec.obs_dtype), "info_keys": []} | bounds


def _spec_of_json(path: str | Path, found: Any) -> EnvSpec | None:
    if found is None:
        return None
    try:
        low, high = (
            None if found[name] is None else np.asarray(found[name], np.float32)
            for name in ("action_low", "action_high")
        )
        return EnvSpec(
            name=str(found["name"]),
            obs_shape=tuple(map(int, found["obs_shape"])),
            obs_dtype=np.dtype(found["obs_dtype"]),
            num_actions=None if found["num_actions"] is None else int(found["num_actions"]),
            action_shape=tuple(map(int, found["action_shape"])),
            action_low=low,
            action_high=high,
            max_episode_steps=int(found["max_episode_steps"]),
            action_sizes=tuple(map(int, found.get("action_sizes", ()))),
        )
    except (KeyError, TypeError, ValueError):
        raise UserError(f"dataset {path}: its description of the environment is damaged") from None
