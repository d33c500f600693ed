"""Charts of a page as plain data; templates/charts.js.j2 draws them as SVG.

    Chart("loss", "Loss", "lines", {"y": "Loss", "series": [...]})

A chart's data has places in the palette instead of colours, so that the style sheet handles light and dark
mode. `run` marks what the reader can hide. Curves have two horizontal axes, steps and minutes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from jaxrl_hpc.ops.statistics import FEW
from jaxrl_hpc.report.data import RunData, SeedCurve
from jaxrl_hpc.report.style import title

Kind = Literal["lines", "bars", "columns", "strip", "field", "points"]
Places = dict[str, int]  # run -> place in the palette
SEED_LINES = 32  # with more, single seeds are not drawn


@dataclass
class Chart:
    """A chart. `summary` is its text for screen readers."""

    id: str
    title: str
    kind: Kind
    data: dict[str, Any] = field(default_factory=dict)
    summary: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "kind": self.kind, **self.data}


def curve_chart(
    identity: str, runs: Sequence[RunData], places: Places, kind: str, column: str, seeds: bool = False
) -> Chart | None:
    """A metric of several runs along steps and time; None if no run has it."""
    series, ends = [], []
    for run in runs:
        curves = run.seed_curves(kind, column)
        curve = run.curve(kind, column)
        if curve is None:
            continue
        many = len(curves) > 1
        entry: dict[str, Any] = {"run": run.name, "color": places[run.name], "x": short(curve.x)}
        entry["t"] = short(_minutes(curves, curve.x))
        entry["y"] = short(curve.value)
        if many:
            entry |= {"low": short(curve.low), "high": short(curve.high)}
        if seeds and many and len(curves) <= SEED_LINES:
            entry["seeds"] = [_seed_line(one, curve.x) for one in curves]
        series.append(entry)
        ends.append(f"{run.name} ends at {curve.value[-1]:.4g}")
    if not series:
        return None
    data = {"y": title(column), "x": title("env_steps"), "t": title("wall_seconds"), "series": series}
    return Chart(identity, title(column), "lines", data, "; ".join(ends))


def _minutes(curves: Sequence[SeedCurve], steps: np.ndarray) -> np.ndarray:
    """Mean time over seeds at given steps."""
    return np.asarray(np.mean([np.interp(steps, one.steps, one.minutes) for one in curves], axis=0))


def _seed_line(one: SeedCurve, shared: np.ndarray) -> dict[str, Any]:
    """A seed's own points; steps and times are those of the whole where they are the same."""
    line: dict[str, Any] = {"y": short(one.values)}
    if not np.array_equal(one.steps, shared):
        line |= {"x": short(one.steps), "t": short(one.minutes)}
    return line


def rate_chart(identity: str, runs: Sequence[RunData], places: Places) -> Chart | None:
    """Environment steps of all seeds per second since the start of the run."""
    series = []
    for run in runs:
        clock = run.clock()
        if len(clock) > 2:
            steps, wall = clock.T
            rate = len(run.seeds) * steps / wall
            entry = {"run": run.name, "color": places[run.name]}
            series.append(entry | {"x": short(steps), "t": short(wall / 60), "y": short(rate)})
    if not series:
        return None
    data = {"y": "Steps per second, all seeds", "x": title("env_steps"), "t": title("wall_seconds")}
    return Chart(
        identity, "Steps per second since the start", "lines", data | {"zero": True, "series": series}
    )


def bar_chart(identity: str, heading: str, unit: str, bars: Sequence[tuple[str, int, float]]) -> Chart:
    """One horizontal bar per run: (name, place, value)."""
    rows = [
        {"run": name, "label": name, "parts": [{"color": place, "value": number(value)}]}
        for name, place, value in bars
    ]
    text = "; ".join(f"{name} {value:.4g}" for name, _, value in bars)
    return Chart(identity, heading, "bars", {"x": unit, "rows": rows}, text)


@dataclass
class StripRow:
    """Seeds of one run as points, with the score and its interval or range."""

    name: str
    place: int
    values: Sequence[float]
    score: float
    low: float
    high: float


def strip_chart(identity: str, heading: str, unit: str, rows: Sequence[StripRow]) -> Chart:
    data = [
        {
            "run": row.name, "label": row.name, "color": row.place, "values": short(row.values),
            "y": number(row.score), "low": number(row.low), "high": number(row.high),
            "few": len(row.values) < FEW,
        }
        for row in rows
    ]  # fmt: skip
    text = "; ".join(f"{row.name} {row.score:.4g}, from {row.low:.4g} to {row.high:.4g}" for row in rows)
    return Chart(identity, heading, "strip", {"x": unit, "rows": data}, text)


def number(value: Any) -> float | None:
    """Round to six digits, which halves the size of the page; NaN becomes null."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


def short(values: Any) -> list[float | None]:
    return [number(value) for value in np.asarray(values, np.float64)]
