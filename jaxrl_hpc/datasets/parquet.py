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
from typing import Annotated, Any, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ConfigDict, Field, ValidationError, model_validator

from jaxrl_hpc.datasets import Columns, Dataset, check_declared_size, from_columns
from jaxrl_hpc.errors import UserError, os_error_sentence
from jaxrl_hpc.schema import Schema
from jaxrl_hpc.types import EnvSpec

KEY = b"jaxrl_hpc"
FORMAT = 1
NEEDED = ("observation", "action", "reward", "terminated", "truncated")
OPTIONAL = ("episode", "next_observation")

Size = Annotated[int, Field(ge=1)]


class Recorded(Schema):
    """`env` in the description. Settings besides the name are informative only."""

    model_config = ConfigDict(extra="ignore")
    name: str = ""


class Described(Schema):
    """An environment's spec as JSON."""

    model_config = ConfigDict(extra="ignore")
    name: str
    obs_shape: tuple[Size, ...]
    obs_dtype: Literal[
        "bool", "uint8", "uint16", "uint32", "int8", "int16", "int32", "float16", "float32", "float64"
    ]
    num_actions: Size | None
    action_shape: tuple[Size, ...]
    action_low: list[Any] | float | None
    action_high: list[Any] | float | None
    max_episode_steps: Size
    action_sizes: tuple[Size, ...] = ()

    @model_validator(mode="after")
    def _actions_agree(self) -> Self:
        if self.num_actions is not None or self.action_sizes:
            if self.action_shape != ((len(self.action_sizes),) if self.action_sizes else ()):
                raise ValueError("action_shape is not that of discrete actions")
            return self
        low, high = self.bounds
        if low is None or high is None or not low.shape == high.shape == self.action_shape:
            raise ValueError(f"bounds of actions should have shape {self.action_shape}")
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
            raise ValueError("bounds of actions should be finite, the lower ones first")
        return self

    @property
    def bounds(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        low, high = (
            None if x is None else np.asarray(x, np.float32) for x in (self.action_low, self.action_high)
        )
        return low, high

    def spec(self) -> EnvSpec:
        return EnvSpec(
            name=self.name,
            obs_shape=self.obs_shape,
            obs_dtype=np.dtype(self.obs_dtype),
            num_actions=self.num_actions,
            action_shape=self.action_shape,
            action_low=self.bounds[0],
            action_high=self.bounds[1],
            max_episode_steps=self.max_episode_steps,
            action_sizes=self.action_sizes,
        )


class Format(Schema):
    """Comes first: other formats may have other descriptions."""

    model_config = ConfigDict(extra="ignore")
    format: int


class Description(Format):
    """The JSON in a file's metadata, as far as it is read."""

    env: Recorded = Recorded()
    spec: Described | None = None


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
    with pq.ParquetFile(str(path), page_checksum_verification=True) as file:
        missing = [name for name in NEEDED if name not in file.schema_arrow.names]
        if not set(OPTIONAL) & set(file.schema_arrow.names):
            missing.append("episode (or next_observation)")
        if missing:
            raise UserError(
                f"dataset {path}: missing column {', '.join(missing)}; docs/offline.md has the schema"
            )
        names = [name for name in (*NEEDED, *OPTIONAL) if name in file.schema_arrow.names]
        widths = {name: _width(path, name, file.schema_arrow.field(name).type) for name in names}
        about = _description(path, (file.schema_arrow.metadata or {}).get(KEY))
        check_declared_size(path, _declared_bytes(file.metadata, widths))
        table = file.read(columns=names).combine_chunks()
    spec = about.spec.spec() if about.spec else None
    shape = spec.obs_shape if spec else None
    columns = Columns(
        obs=_array(path, table, "observation", shape),
        action=_array(path, table, "action", spec.action_shape if spec else None),
        reward=_array(path, table, "reward", ()),
        terminated=_array(path, table, "terminated", ()),
        truncated=_array(path, table, "truncated", ()),
        episode=_array(path, table, "episode", ()) if "episode" in names else np.zeros(table.num_rows, int),
        next_obs=_array(path, table, "next_observation", shape) if "next_observation" in names else None,
    )
    return from_columns(path, columns, spec, about.env.name)


def _width(path: str | Path, name: str, kind: pa.DataType) -> int:
    """Bytes of a column's numbers; UserError if it has none."""
    inside = kind.value_type if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) else kind
    if not (pa.types.is_boolean(inside) or pa.types.is_integer(inside) or pa.types.is_floating(inside)):
        raise UserError(f"dataset {path}: {name} holds {kind}, not numbers")
    return -(-inside.bit_width // 8)


def _declared_bytes(metadata: pq.FileMetaData, widths: dict[str, int]) -> int:
    """Bytes of the decoded columns, which may take few bytes in the file."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    return sum(widths.get(c.path_in_schema.split(".")[0], 0) * c.num_values for c in columns)


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


def _description(path: str | Path, text: bytes | None) -> Description:
    if text is None:
        return Description(format=FORMAT)
    try:
        number = Format.model_validate_json(text).format
        if number != FORMAT:
            raise UserError(f"dataset {path}: it has format {number}, this version reads {FORMAT}")
        return Description.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(
            f"dataset {path}: its description (metadata jaxrl_hpc) is damaged"
            f" ({where + ': ' if where else ''}{first['msg']})"
        ) from None


def _spec_to_json(spec: EnvSpec) -> dict[str, Any]:
    bounds = {
        name: None if value is None else np.asarray(value, np.float64).tolist()
        for name, value in (("action_low", spec.action_low), ("action_high", spec.action_high))
    }
    return spec._asdict() | {"obs_dtype": str(spec.obs_dtype), "info_keys": []} | bounds
