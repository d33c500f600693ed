"""Charts of a sweep: a metric along one axis, and over two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from jaxrl_hpc.ops.statistics import score
from jaxrl_hpc.report.charts import Chart
from jaxrl_hpc.report.style import color, title
from jaxrl_hpc.sweeps.collect import Standing
from jaxrl_hpc.sweeps.plan import SweepPlan

SCALE = "Viridis"


def _numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def is_logarithmic(plan: SweepPlan, key: str, values: Sequence[Any]) -> bool:
    """Spaced by factors: said so in the sweep, or seen in at least three listed values."""
    axis = plan.spec.axes[key]
    if axis.kind in ("log_uniform", "grid", "random"):
        return axis.kind == "log_uniform" or axis.log
    distinct = sorted({float(v) for v in values}) if _numeric(values) else []
    return len(distinct) > 2 and distinct[0] > 0 and distinct[-1] / distinct[0] >= 10


def _axis(plan: SweepPlan, key: str, values: Sequence[Any]) -> dict[str, Any]:
    """Plotly's settings of an axis that shows a setting's values."""
    layout: dict[str, Any] = {"title": {"text": key}}
    if not _numeric(values):
        return layout | {"type": "category"}
    distinct = sorted({float(v) for v in values})
    if is_logarithmic(plan, key, values):
        layout["type"] = "log"
    if len(distinct) <= 8:  # the values themselves are the best marks
        layout |= {"tickvals": distinct, "ticktext": [f"{v:.3g}" for v in distinct]}
    return layout


def _shown(value: Any) -> Any:
    return value if _numeric([value]) else str(value)


def slice_chart(
    identity: str,
    plan: SweepPlan,
    key: str,
    rows: Sequence[dict[str, Any]],
    diverged: Sequence[dict[str, Any]],
) -> Chart | None:
    """A metric against one axis; None if the axis has a single value."""
    metric = plan.spec.metric
    values = [row[key] for row in (*rows, *diverged)]
    if len({str(v) for v in values}) < 2:
        return None
    figure = go.Figure()
    figure.add_scatter(
        x=[_shown(row[key]) for row in rows],
        y=[row[metric] for row in rows],
        mode="markers",
        marker={"color": color(0), "size": 7, "opacity": 0.45},
        text=["<br>".join(f"{k} {row[k]}" for k in (*plan.spec.axes, "seed")) for row in rows],
        hovertemplate="%{y:.4~g}<br>%{text}<extra></extra>",
    )
    if len({str(v) for v in values}) <= max(2, len(rows) // 2):  # a value comes more than once: average
        _add_line(figure, key, metric, rows)
    _add_diverged(figure, key, diverged, rows, metric)
    figure.update_layout(template="none", showlegend=False, hovermode="closest")
    figure.update_xaxes(**_axis(plan, key, values))
    return Chart(identity, f"{title(metric)} against {key}", figure)


def _add_line(figure: go.Figure, key: str, metric: str, rows: Sequence[dict[str, Any]]) -> None:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(str(row[key]), []).append(row)
    members = list(groups.values())
    if _numeric([row[key] for row in rows]):
        members.sort(key=lambda group: group[0][key])
    samples = [np.array([row[metric] for row in group], np.float64) for group in members]
    scores = [score(values) for values in samples]
    center = [float(found.value) for found in scores]
    bounds = [(found.low, found.high) for found in scores]
    figure.add_scatter(
        x=[_shown(group[0][key]) for group in members],
        y=center,
        mode="lines+markers",
        line={"color": color(1), "width": 2.4},
        marker={"size": 8},
        error_y={
            "type": "data",
            "array": [float(high) - c for (_, high), c in zip(bounds, center, strict=True)],
            "arrayminus": [c - float(low) for (low, _), c in zip(bounds, center, strict=True)],
            "color": color(1),
            "thickness": 1.6,
            "width": 5,
        },
        hovertemplate="%{x}: %{y:.4~g}<extra>mean</extra>",
    )


def _add_diverged(
    figure: go.Figure,
    key: str,
    diverged: Sequence[dict[str, Any]],
    rows: Sequence[dict[str, Any]],
    metric: str,
) -> None:
    """Crosses along the foot of the chart, where trials have no number."""
    if not diverged:
        return
    values = [row[metric] for row in rows]
    foot = min(values) - 0.06 * ((max(values) - min(values)) or 1.0)
    figure.add_scatter(
        x=[_shown(row[key]) for row in diverged],
        y=[foot] * len(diverged),
        mode="markers",
        marker={"symbol": "x", "color": color(4), "size": 8},
        hovertemplate="diverged at %{x}<extra></extra>",
    )


def interaction_chart(
    identity: str, plan: SweepPlan, first: str, second: str, ranked: Sequence[Standing]
) -> Chart:
    """A metric over two axes: a field where both have few values, else points."""
    heading = f"{first} and {second}"
    distinct = [{str(entry.values[key]) for entry in ranked} for key in (first, second)]
    cells = len(distinct[0]) * len(distinct[1])
    chart = _field if cells <= 4 * len(ranked) and max(map(len, distinct)) <= 20 else _points
    figure = chart(plan, first, second, ranked)
    figure.update_layout(template="none", showlegend=False, hovermode="closest")
    return Chart(identity, heading, figure)


def _field(plan: SweepPlan, first: str, second: str, ranked: Sequence[Standing]) -> go.Figure:
    """Means in a matrix of the values."""
    columns, lines = (_ordered([entry.values[key] for entry in ranked]) for key in (first, second))
    sums: dict[tuple[str, str], list[float]] = {}
    for entry in ranked:
        sums.setdefault((str(entry.values[first]), str(entry.values[second])), []).append(entry.metric)
    z = [[_mean(sums.get((str(x), str(y)))) for x in columns] for y in lines]
    figure = go.Figure()
    figure.add_heatmap(
        x=[_name(x) for x in columns],
        y=[_name(y) for y in lines],
        z=z,
        colorscale=SCALE,
        reversescale=plan.spec.goal == "minimise",
        texttemplate="%{z:.3~g}" if len(columns) * len(lines) <= 60 else "",
        hovertemplate=f"{first} %{{x}}<br>{second} %{{y}}<br>%{{z:.4~g}}<extra></extra>",
        xgap=2,
        ygap=2,
    )
    figure.update_xaxes(title_text=first, type="category")
    figure.update_yaxes(title_text=second, type="category")
    return figure


def _points(plan: SweepPlan, first: str, second: str, ranked: Sequence[Standing]) -> go.Figure:
    x, y = ([_shown(entry.values[key]) for entry in ranked] for key in (first, second))
    figure = go.Figure()
    figure.add_scatter(
        x=x,
        y=y,
        mode="markers",
        marker={
            "color": [entry.metric for entry in ranked],
            "colorscale": SCALE,
            "reversescale": plan.spec.goal == "minimise",
            "size": 12,
            "showscale": True,
            "colorbar": {"thickness": 12},
        },
        text=["<br>".join(f"{k} {v}" for k, v in entry.values.items()) for entry in ranked],
        hovertemplate="%{marker.color:.4~g}<br>%{text}<extra></extra>",
    )
    figure.update_xaxes(**_axis(plan, first, x))
    figure.update_yaxes(**_axis(plan, second, y))
    return figure


def _ordered(values: Sequence[Any]) -> list[Any]:
    unique = list({str(value): value for value in values}.values())
    return sorted(unique) if _numeric(unique) else unique


def _name(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _mean(values: list[float] | None) -> float | None:
    return float(score(np.array(values)).value) if values else None
