"""A run directory as data for plots, reports and notebooks.

run = load_run("runs/cartpole_dqn")
run.summary["eval_return_score"]; run.table.to_pandas()
curve = run.curve("eval", "eval_return", "env_steps")     # score and interval over seeds
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.metrics.parquet import CORE_SCHEMA, arrow_column, read_metrics
from jaxrl_hpc.ops.statistics import Curve, aggregate_curves
from jaxrl_hpc.runs.directory import RunDirectory


class NoMetricsYet(UserError):
    """A run has not logged anything so far."""


class SeedCurve(NamedTuple):
    """A metric of one seed along the run."""

    seed: int
    steps: np.ndarray  # [K], increasing
    minutes: np.ndarray  # [K]
    values: np.ndarray  # [K]


@dataclass(frozen=True)
class RunData:
    """All data of a run on disk except its checkpoints."""

    name: str
    path: Path
    config: dict[str, Any]
    summary: dict[str, Any]  # empty while the run has not finished
    table: pa.Table
    base: tuple[str, dict[str, Any]] | None = None  # the config it was made from, name and flat settings

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

    def _rows(self, kind: str) -> pa.Table:
        return self.table.filter(arrow_column([found == kind for found in self.table["kind"].to_pylist()]))

    def columns(self, kind: str) -> list[str]:
        """Numeric metrics that rows of this kind have at least once."""
        rows = self._rows(kind)
        return [
            field.name
            for field in rows.schema
            if field.name not in CORE_SCHEMA.names
            and (pa.types.is_floating(field.type) or pa.types.is_integer(field.type))
            and rows[field.name].null_count < rows.num_rows
        ]

    def seed_curves(self, kind: str, column: str, final: bool = True) -> list[SeedCurve]:
        """A metric of every seed that has any, points without a finite value left out.

        With `final` the evaluation after the last update, which summary.json holds, is the last point of
        evaluations: headline and curve then agree.
        """
        rows = self._rows(kind)
        if column not in rows.column_names:
            return []
        names = ("seed", "env_steps", "wall_seconds", column)
        seed, steps, wall, values = (_numbers(rows[name]) for name in names)
        curves = []
        for which in self.seeds:
            good = (seed == which) & np.isfinite(values)
            if good.any():
                order = np.argsort(steps[good], kind="stable")
                found = SeedCurve(which, *(part[good][order] for part in (steps, wall / 60, values)))
                curves.append(self._with_final(found, column) if final and kind == "eval" else found)
        return curves

    def _with_final(self, curve: SeedCurve, column: str) -> SeedCurve:
        value = self.summary.get(f"{column}_per_seed", {}).get(str(curve.seed))
        end = self.summary.get("env_steps")
        if value is None or not isinstance(end, int | float) or not np.isfinite(value):
            return curve
        before = curve.steps < end
        minutes = max(float(self.summary.get("wall_seconds") or 0) / 60, *curve.minutes, 0.0)
        points = zip(curve[1:], (end, minutes, value), strict=True)
        return SeedCurve(curve.seed, *(np.append(part[before], last) for part, last in points))

    def per_seed(
        self, kind: str, column: str, axis: str, final: bool = False
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """(axis, values) of every seed; `final` as in seed_curves."""
        curves = self.seed_curves(kind, column, final)
        return [(one.minutes * 60 if axis == "wall_seconds" else one.steps, one.values) for one in curves]

    def curve(self, kind: str, column: str, axis: str = "env_steps") -> Curve | None:
        """Scores over seeds (ops/statistics.py), with the final evaluation; None if nothing was logged."""
        seeds = self.per_seed(kind, column, axis, final=True)
        return aggregate_curves([x for x, _ in seeds], [y for _, y in seeds]) if seeds else None

    def clock(self) -> np.ndarray:
        """[K, 2]: environment steps of one seed and wall seconds at log points, the mean over seeds."""
        rows = self._rows("train")
        steps, wall = (_numbers(rows[name]) for name in ("env_steps", "wall_seconds"))
        known, where = np.unique(steps[wall > 0], return_inverse=True)
        return np.stack([known, np.bincount(where, wall[wall > 0]) / np.bincount(where)], 1)

    def final_values(self, column: str = "eval_return") -> np.ndarray:
        """The final evaluation of each seed, or the last point so far of a run in progress."""
        return np.array([one.values[-1] for one in self.seed_curves("eval", column)])


def load_run(path: str | Path) -> RunData:
    """Load a run; UserError if it is not one, is damaged, or has not logged anything yet."""
    run = RunDirectory.existing(path)
    table = read_metrics(run.path)
    if not table.num_rows:
        raise NoMetricsYet(f"{path} has no metrics yet: wait until the run has logged something")
    name = run.path.resolve().name
    return RunData(name, run.path, run.read_config(), run.read_summary() or {}, table)


def load_runs(paths: Sequence[str | Path]) -> list[RunData]:
    """Load runs and give them distinct names: as much of the path as needed."""
    runs = [load_run(path) for path in paths]
    resolved = [run.path.resolve() for run in runs]
    if len(set(resolved)) != len(resolved):
        raise UserError("the same run is given twice")
    depth = 1
    while len({path.parts[-depth:] for path in resolved}) < len(runs):
        depth += 1
    names = ["/".join(path.parts[-depth:]) for path in resolved]
    return [replace(run, name=name) for name, run in zip(names, runs, strict=True)]


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    """NaN where there is none. pyarrow's own conversion imports pandas, at the end of every training."""
    return np.array([np.nan if value is None else value for value in column.to_pylist()], np.float64)
