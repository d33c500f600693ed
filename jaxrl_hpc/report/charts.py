"""Interactive charts of a report: Plotly figures with what the page's controls need to know.

A trace's `meta` is {"run": name, "axis": "env_steps" | "wall_seconds"}; either may be missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from jaxrl_hpc.ops.statistics import Curve
from jaxrl_hpc.report.data import RunData
from jaxrl_hpc.report.style import title

AXES = {"env_steps": "Environment steps", "wall_seconds": "Wall time (s)"}
SEED_LINES = 32  # beyond that single seeds are only noise


@dataclass
class Chart:
    """A figure and how the page treats it: `curve` charts follow the axis and log controls."""

    id: str
    title: str
    figure: go.Figure
    curve: bool = False
    positive: bool = False  # may be drawn on a log axis
    toolbar: bool = False  # Plotly's own buttons, for large charts

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "figure": self.figure.to_plotly_json(),
            "curve": self.curve,
            "positive": self.positive,
            "axis_titles": AXES,
            "toolbar": self.toolbar,
        }


def curve_chart(
    identity: str,
    runs: Sequence[RunData],
    colors: dict[str, str],
    kind: str,
    column: str,
    seeds: bool = False,
) -> Chart | None:
    """A metric of several runs along steps and along time; None if no run has it."""
    figure = go.Figure()
    lowest = np.inf
    for run in runs:
        for axis in AXES:
            curve = run.curve(kind, column, axis)
            if curve is None:
                continue
            lowest = min(lowest, float(curve.low.min()))
            meta = {"run": run.name, "axis": axis}
            if seeds and 1 < len(run.seeds) <= SEED_LINES:
                _add_seeds(figure, run, kind, column, axis, colors[run.name], meta)
            _add_curve(figure, curve, run, colors[run.name], meta, many=len(run.seeds) > 1)
    if not figure.data:
        return None
    figure.update_layout(
        template="none", showlegend=False, hovermode="x unified" if len(runs) < 6 else "closest"
    )
    return Chart(identity, title(column), figure, curve=True, positive=lowest > 0, toolbar=seeds)


def _add_curve(
    figure: go.Figure, curve: Curve, run: RunData, color: str, meta: dict[str, str], many: bool
) -> None:
    x = _short(curve.x)
    if many:
        outline = {"x": x + x[::-1], "y": _short(curve.high) + _short(curve.low[::-1])}
        figure.add_scatter(
            **outline, fill="toself", fillcolor=color, opacity=0.18, line_width=0, mode="lines",
            hoverinfo="skip", meta=meta,
        )  # fmt: skip
    interval = [[low, high] for low, high in zip(_short(curve.low), _short(curve.high), strict=True)]
    hover = "%{y:.4~g}" + (" [%{customdata[0]:.4~g}, %{customdata[1]:.4~g}]" if many else "")
    figure.add_scatter(
        x=x,
        y=_short(curve.value),
        name=run.name,
        mode="lines" if len(x) > 1 else "markers",
        line={"color": color, "width": 2.4},
        customdata=interval,
        hovertemplate=hover,
        meta=meta,
    )


def _add_seeds(
    figure: go.Figure, run: RunData, kind: str, column: str, axis: str, color: str, meta: dict[str, str]
) -> None:
    """All seeds as one thin broken line, so that they cost one trace."""
    x: list[float | None] = []
    y: list[float | None] = []
    for steps, values in run.per_seed(kind, column, axis):
        x += [*_short(steps), None]
        y += [*_short(values), None]
    figure.add_scatter(
        x=x, y=y, mode="lines", line={"color": color, "width": 0.8}, opacity=0.28, hoverinfo="skip", meta=meta
    )


def rate_chart(identity: str, runs: Sequence[RunData], colors: dict[str, str]) -> Chart | None:
    """Environment steps per second of all seeds, between one log point and the next."""
    figure = go.Figure()
    for run in runs:
        points = [
            np.unique(np.stack(pair, 1), axis=0)
            for pair in run.per_seed("train", "wall_seconds", "env_steps")
        ]
        length = min((len(point) for point in points), default=0)
        steps, wall = (
            np.median([point[:length] for point in points], axis=0).T if length > 2 else np.zeros((2, 0))
        )
        later = np.flatnonzero(np.diff(wall) > 0)
        rate = len(run.seeds) * np.diff(steps)[later] / np.diff(wall)[later]
        for axis, x in (("env_steps", steps[1:][later]), ("wall_seconds", wall[1:][later])):
            if len(x):
                figure.add_scatter(
                    x=_short(x), y=_short(rate), name=run.name, mode="lines",
                    line={"color": colors[run.name], "width": 2},
                    hovertemplate="%{y:.3s}/s", meta={"run": run.name, "axis": axis},
                )  # fmt: skip
    if not figure.data:
        return None
    figure.update_layout(template="none", showlegend=False, hovermode="x unified")
    figure.update_yaxes(rangemode="tozero")
    return Chart(identity, "Steps per second during the run", figure, curve=True, positive=True)


def bar_chart(
    identity: str,
    heading: str,
    names: Sequence[str],
    colors: Sequence[str],
    values: Sequence[float],
    hover: str,
) -> Chart:
    """One horizontal bar per run."""
    figure = go.Figure()
    for name, color, value in zip(names, colors, values, strict=True):
        figure.add_bar(
            x=[value], y=[name], orientation="h", marker_color=color, hovertemplate=hover,
            name=name, meta={"run": name},
        )  # fmt: skip
    figure.update_layout(template="none", showlegend=False, bargap=0.45)
    figure.update_yaxes(autorange="reversed")
    return Chart(identity, heading, figure)


def _short(values: np.ndarray) -> list[float]:
    """Six digits are enough on a screen and halve the page."""
    return [float(f"{value:.6g}") for value in np.asarray(values, np.float64)]
