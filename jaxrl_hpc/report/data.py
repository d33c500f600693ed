"""A run directory as data: what plots, reports and notebooks are made from.

run = load_run("runs/cartpole_dqn")
run.summary["eval_return_score"]; run.table.to_pandas()
curve = run.curve("eval", "eval_return", "env_steps")     # score and interval over seeds
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.metrics.parquet import CORE_SCHEMA, read_metrics
from jaxrl_hpc.ops.statistics import Curve, aggregate_curves
from jaxrl_hpc.runs.directory import RunDirectory


@dataclass(frozen=True)
class RunData:
    """Everything that is on disk about a run but its checkpoints."""

    name: str
    path: Path
    config: dict[str, Any]
    summary: dict[str, Any]  # empty while the run has not finished
    table: pa.Table

    @property
    def env(self) -> str:
        return str(self.setting("env", "name"))

    @property
    def agent(self) -> str:
        return str(self.setting("agent", "name"))

    def setting(self, *keys: str) -> Any:
        """A value of the config, "?" if there is none."""
        value: Any = self.config
        for key in keys:
            value = value.get(key, "?") if isinstance(value, dict) else "?"
        return value

    @property
    def seeds(self) -> list[int]:
        return sorted(set(self.table["seed"].to_pylist()))

    def columns(self, kind: str) -> list[str]:
        """Numeric metrics that rows of this kind have at least once."""
        rows = self.table.filter(pc.equal(self.table["kind"], kind))
        return [
            field.name
            for field in rows.schema
            if field.name not in CORE_SCHEMA.names
            and (pa.types.is_floating(field.type) or pa.types.is_integer(field.type))
            and rows[field.name].null_count < rows.num_rows
        ]

    def per_seed(self, kind: str, column: str, axis: str) -> list[tuple[np.ndarray, np.ndarray]]:
        """(axis, values) of every seed that has any, points without a finite value left out."""
        rows = self.table.filter(pc.equal(self.table["kind"], kind))
        if column not in rows.column_names:
            return []
        seed, x, y = (_numbers(rows[name]) for name in ("seed", axis, column))
        curves = []
        for which in self.seeds:
            good = (seed == which) & np.isfinite(y)
            if good.any():
                order = np.argsort(x[good], kind="stable")
                curves.append((x[good][order], y[good][order]))
        return curves

    def curve(self, kind: str, column: str, axis: str = "env_steps") -> Curve | None:
        """Scores over seeds (ops/statistics.py); None if nothing was logged."""
        seeds = self.per_seed(kind, column, axis)
        return aggregate_curves([x for x, _ in seeds], [y for _, y in seeds]) if seeds else None


def load_run(path: str | Path) -> RunData:
    """UserError if it is not a run, or broken, or has not logged anything yet."""
    run = RunDirectory.existing(path)
    table = read_metrics(run.path)
    if not table.num_rows:
        raise UserError(f"{path} has no metrics yet: wait until the run has logged something")
    name = run.path.resolve().name
    return RunData(name, run.path, run.read_config(), run.read_summary() or {}, table)


def load_runs(paths: Sequence[str | Path]) -> list[RunData]:
    """Runs with names that tell them apart: as much of the path as that needs."""
    runs = [load_run(path) for path in paths]
    resolved = [run.path.resolve() for run in runs]
    if len(set(resolved)) != len(resolved):
        raise UserError("the same run is given twice")
    depth = 1
    while len({path.parts[-depth:] for path in resolved}) < len(runs):
        depth += 1
    names = ["/".join(path.parts[-depth:]) for path in resolved]
    return [
        RunData(name, run.path, run.config, run.summary, run.table)
        for name, run in zip(names, runs, strict=True)
    ]


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    numbers: np.ndarray = pc.fill_null(column.cast(pa.float64()), np.nan).to_numpy()
    return numbers
