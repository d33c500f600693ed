"""One table with a row per trial: axis values, result, and origin."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jaxrl_hpc.checkpoint.blocks import write_atomically
from jaxrl_hpc.ops.statistics import score
from jaxrl_hpc.sweeps.directory import FINISHED, SweepDirectory
from jaxrl_hpc.sweeps.halving import combination
from jaxrl_hpc.sweeps.plan import SweepPlan
from jaxrl_hpc.sweeps.status import MISSING

ORIGIN = ("env_steps", "updates", "wall_seconds", "compile_seconds", "trials_side_by_side", "diverged_at")
BUILD = ("params_sha256", "version", "commit")


def rows(plan: SweepPlan, directory: SweepDirectory) -> list[dict[str, Any]]:
    """A row per trial of the plan, including those without a result."""
    table = []
    task_of = {trial.id: task.index for task in plan.tasks for trial in task.trials}
    for trial in plan.trials:
        result = directory.result(trial.id) or {}
        row: dict[str, Any] = {"trial": trial.id, "status": result.get("status", MISSING)}
        row |= {"task": task_of[trial.id], "seed": trial.seed, "combination": combination(trial)}
        row |= {key: _plain(value) for key, value in trial.values.items()}
        numbers = (int, float)
        row |= {k: v for k, v in result.items() if k.startswith("eval_") and isinstance(v, numbers)}
        row |= {key: result.get(key) for key in (*ORIGIN, *BUILD)}
        table.append(row)
    return table


def _plain(value: Any) -> Any:
    """Scalars as they are; lists, such as layer widths, as text."""
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def to_table(table: list[dict[str, Any]]) -> pa.Table:
    names = dict.fromkeys(name for row in table for name in row)
    columns = {}
    for name in names:
        values = [row.get(name) for row in table]
        kinds = {type(value) for value in values if value is not None}
        if len(kinds) > 1 and kinds != {int, float}:
            values = [None if value is None else str(value) for value in values]
        columns[name] = pa.array(values, pa.float64() if kinds == {int, float} else None)
    return pa.table(columns)


def write_table(plan: SweepPlan, directory: SweepDirectory, path: Path) -> pa.Table:
    table = to_table(rows(plan, directory))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, sink.getvalue().to_pybytes())
    return table


class Standing(NamedTuple):
    """A combination of axis values over its seeds."""

    combination: str
    values: dict[str, Any]
    seeds: int  # that finished
    diverged: int
    metric: float  # score over seeds
    low: float
    high: float
    trial: str  # the first seed's


def standings(plan: SweepPlan, directory: SweepDirectory) -> list[Standing]:
    """Combinations with at least one finished seed, best first; those with diverged seeds after the rest."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows(plan, directory):
        groups.setdefault(row["combination"], []).append(row)
    found = []
    for name, members in groups.items():
        done = [r for r in members if r["status"] == FINISHED and r.get(plan.spec.metric) is not None]
        if not done:
            continue
        samples = np.array([row[plan.spec.metric] for row in done], np.float64)
        center, low, high = (float(x) for x in score(samples))
        values = {key: done[0][key] for key in plan.spec.axes}
        diverged = sum(row["status"] == "diverged" for row in members)
        found.append(Standing(name, values, len(done), diverged, center, low, high, done[0]["trial"]))
    sign = -1.0 if plan.spec.goal == "maximise" else 1.0
    worst = math.inf
    return sorted(
        found, key=lambda s: (s.diverged > 0, sign * s.metric if math.isfinite(s.metric) else worst)
    )
