"""Metrics of a run as Parquet: one row per log point and seed.

    writer = MetricsWriter(run_dir)
    writer.append([{"iteration": 8, "env_steps": 512, "updates": 64, "seed": 0, "kind": "train",
                    "wall_seconds": 1.5, "loss": 0.2}, …])
    checkpointer.save(step, state, {"metrics": writer.commit()})
    …
    writer = MetricsWriter(run_dir); writer.restore(host["metrics"])       # after a kill
    read_metrics(run_dir)                                                  # pyarrow.Table, also meanwhile

Rows are numbered from the start of the run and a part's name states which it holds:
`metrics/part-<first>-<end>.parquet`. A checkpoint records the number of rows; restoring it drops later rows,
so a killed and resumed run has each row once. Small neighbouring parts are merged, up to a size that keeps
memory flat in long runs: the merged part is written before the old ones are deleted, and readers take the
longest part at each row. Columns may appear at any time; where a row lacks one it is null.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jaxrl_hpc.checkpoint.blocks import write_atomically
from jaxrl_hpc.errors import UserError

Row = Mapping[str, Any]

CORE_SCHEMA = pa.schema(
    [
        ("iteration", pa.int64()),  # of the workflow
        ("env_steps", pa.int64()),  # of this seed, warm-up included
        ("updates", pa.int64()),  # of this seed
        ("seed", pa.int64()),
        ("kind", pa.string()),  # "train" or "eval"
        ("wall_seconds", pa.float64()),  # training time so far, over all resumes
    ]
)
CLOCK_COLUMNS = (
    "wall_seconds", "env_steps_per_second", "updates_per_second", "compile_seconds",
    "learner_idle", "actor_idle", "queue_depth", "inference_share",
)  # fmt: skip
CLOCK_PREFIX = "time/"  # phase timers; with CLOCK_COLUMNS all that may differ between exact repeats

# of columns that are not in the schema; of several kinds the first one that occurs
KINDS = {str: pa.string(), float: pa.float64(), int: pa.int64(), bool: pa.bool_()}
MAX_PARTS = 16  # that may still be merged
WHOLE_ROWS = 4096  # parts of this many rows are not merged again
PART = re.compile(r"part-(\d+)-(\d+)\.parquet(\.\d+\.tmp)?")  # the end: of a write that was cut off


class Writer(Protocol):
    """Destination of metrics. Each call of append has all seeds of one log point, or of several."""

    def append(self, rows: Sequence[Row]) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class MissingRows(UserError):
    """A part has disappeared."""


class Part(NamedTuple):
    first: int  # number of its first row
    end: int  # number after its last row
    path: Path

    @property
    def rows(self) -> int:
        return self.end - self.first


class MetricsWriter:
    """The Parquet writer of a run: the source of all reports."""

    def __init__(self, run_dir: str | Path) -> None:
        self.directory = Path(run_dir) / "metrics"
        self.directory.mkdir(parents=True, exist_ok=True)
        # its own allocator keeps the memory of merges: up to 2 kB for every row that was ever written
        pa.set_memory_pool(pa.system_memory_pool())
        self._pending: list[dict[str, Any]] = []
        self._parts = _chain(self.directory)

    @property
    def rows(self) -> int:
        """Rows on disk."""
        return self._parts[-1].end if self._parts else 0

    def append(self, rows: Sequence[Row]) -> None:
        for row in rows:
            missing = [name for name in CORE_SCHEMA.names if name not in row]
            if missing:
                raise ValueError(f"a metrics row lacks {', '.join(missing)}")
            self._pending.append({name: _plain(value) for name, value in row.items()})

    def flush(self) -> None:
        """Write the rows so far to disk, where readers see them."""
        if not self._pending:
            return
        self._parts.append(_write(self.directory, self.rows, _to_table(self._pending)))
        self._pending = []
        while sum(part.rows < WHOLE_ROWS for part in self._parts) > MAX_PARTS:
            self._merge_smallest()

    def commit(self) -> dict[str, int]:
        """Flush; returns what restore() needs, to be kept with a checkpoint."""
        self.flush()
        return {"rows": self.rows}

    def restore(self, committed: Mapping[str, int] | None) -> None:
        """Go back to a commit (None: to the beginning): rows after it are dropped."""
        wanted = committed["rows"] if committed else 0
        if wanted > self.rows:
            raise UserError(
                f"{self.directory} has {self.rows} rows, but the checkpoint was made with {wanted}"
            )
        self._pending = []
        # rows to keep are read before anything is removed: damage is found now, not at the end of the run
        tables = [(part, _read(part)) for part in self._parts if part.first < wanted]
        kept = [
            part if part.end <= wanted else _write(self.directory, part.first, table[: wanted - part.first])
            for part, table in tables
        ]
        self._parts = kept
        keep = {part.path.name for part in kept}
        for path in list(self.directory.iterdir()):  # including files that a crash left half written
            if PART.fullmatch(path.name) and path.name not in keep:
                path.unlink()

    def close(self) -> None:
        self.flush()

    def _merge_smallest(self) -> None:
        """Replace the two neighbours with the fewest rows by one: a row is rewritten O(log rows) times."""
        pairs = zip(self._parts, self._parts[1:], strict=False)
        sizes = [a.rows + b.rows if max(a.rows, b.rows) < WHOLE_ROWS else np.inf for a, b in pairs]
        index = int(np.argmin(sizes))
        pair = self._parts[index : index + 2]
        merged = _write(self.directory, pair[0].first, _concat([_read(part) for part in pair]))
        self._parts[index : index + 2] = [merged]
        for part in pair:
            part.path.unlink()


class NoMetrics:
    """For ranks that leave writing to rank 0."""

    def append(self, rows: Sequence[Row]) -> None: ...

    def flush(self) -> None: ...

    def commit(self) -> dict[str, int]:
        return {}

    def restore(self, committed: Mapping[str, int] | None) -> None: ...

    def close(self) -> None: ...


def read_metrics(run_dir: str | Path) -> pa.Table:
    """All rows of a run, in order; also while it is being written."""
    directory = Path(run_dir) / "metrics"
    if not directory.is_dir():
        raise UserError(f"{run_dir} has no metrics: it is not the directory of a run")
    for attempt in itertools.count():
        try:
            parts = _chain(directory)
            contents = [part.path.read_bytes() for part in parts]
            break
        except (FileNotFoundError, MissingRows):  # parts may be merged while we look
            if attempt == 50:
                raise
            time.sleep(0.02)
    tables = list(map(_parse, parts, contents))
    return _concat(tables) if tables else CORE_SCHEMA.empty_table()


def without_clock(table: pa.Table) -> pa.Table:
    """The columns that exact repeats of a run share bit for bit."""
    names = [n for n in table.column_names if n not in CLOCK_COLUMNS and not n.startswith(CLOCK_PREFIX)]
    return table.select(names)


def _chain(directory: Path) -> list[Part]:
    """The parts that together hold all rows: at each row the longest part that begins there."""
    longest: dict[int, Part] = {}
    for path in directory.glob("part-*.parquet"):
        match = PART.fullmatch(path.name)
        if match and not match[3] and int(match[1]) < int(match[2]):
            part = Part(int(match[1]), int(match[2]), path)
            if part.first not in longest or part.end > longest[part.first].end:
                longest[part.first] = part
    parts: list[Part] = []
    position = 0
    while position in longest:
        parts.append(longest[position])
        position = parts[-1].end
    beyond = [part.path.name for part in longest.values() if part.first > position]
    if beyond:
        raise MissingRows(f"{directory}: the rows from {position} to those of {min(beyond)} are missing")
    return parts


def _write(directory: Path, first: int, table: pa.Table) -> Part:
    end = first + table.num_rows
    path = directory / f"part-{first:010d}-{end:010d}.parquet"
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    write_atomically(path, sink.getvalue().to_pybytes())
    return Part(first, end, path)


def _read(part: Part) -> pa.Table:
    return _parse(part, part.path.read_bytes())


def _parse(part: Part, content: bytes) -> pa.Table:
    try:
        # read_table imports pandas, where it is installed
        table = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True).read(
            use_threads=False
        )
    except (pa.ArrowException, OSError) as error:  # OSError: what pyarrow raises for a broken footer
        raise UserError(f"{part.path} is damaged: {error}") from error
    if table.num_rows != part.rows or not set(CORE_SCHEMA.names) <= set(table.column_names):
        raise UserError(f"{part.path} is damaged: it does not hold the rows that its name states")
    return table


def _concat(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables, promote_options="permissive").combine_chunks()


def _to_table(rows: list[dict[str, Any]]) -> pa.Table:
    names = list(CORE_SCHEMA.names) + [name for row in rows for name in row if name not in CORE_SCHEMA.names]
    columns = {}
    for name in dict.fromkeys(names):
        kind = CORE_SCHEMA.field(name).type if name in CORE_SCHEMA.names else None
        columns[name] = arrow_column([row.get(name) for row in rows], kind)
    return pa.table(columns)


def arrow_column(values: list[Any], kind: pa.DataType | None = None) -> pa.Array:
    """Like pa.array, which would import pandas if installed: over a second before a run begins."""
    kinds = {type(value) for value in values}
    kind = kind or next((arrow for python, arrow in KINDS.items() if python in kinds), None)
    if kind is None:
        return pa.nulls(len(values))
    present = np.packbits([value is not None for value in values], bitorder="little")
    if kind == pa.string():
        texts = [(value or "").encode() for value in values]
        content = [np.cumsum([0, *map(len, texts)], dtype=np.int32), b"".join(texts)]
    else:
        numbers = np.array([0 if value is None else value for value in values], kind.to_pandas_dtype())
        content = [np.packbits(numbers, bitorder="little") if kind == pa.bool_() else numbers]
    return pa.Array.from_buffers(kind, len(values), [pa.py_buffer(buffer) for buffer in (present, *content)])


def _plain(value: Any) -> Any:
    """A Python scalar; arrays with one element count as scalars."""
    if value is None or type(value) in KINDS:
        return value
    array = np.asarray(value)
    if array.size != 1:
        raise ValueError(f"a metric must be a scalar, got shape {array.shape}")
    return array.item()
