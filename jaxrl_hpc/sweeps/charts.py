"""Charts of a sweep: a metric along one axis, and over two.

Where a sweep has more axes than a chart, the others are fixed at the values of the best combination: an
average over them would mix good and bad settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxrl_hpc.report.charts import Chart, number, short
from jaxrl_hpc.report.style import title
from jaxrl_hpc.sweeps.collect import Standing
from jaxrl_hpc.sweeps.plan import SweepPlan

FIELD_CELLS = 20  # values of an axis that a field still shows


def is_numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def is_logarithmic(plan: SweepPlan, key: str, values: Sequence[Any]) -> bool:
    """Whether an axis is logarithmic: declared in the sweep, or inferred from at least three listed
    values."""
    axis = plan.spec.axes[key]
    if axis.kind in ("log_uniform", "grid", "random"):
        return axis.kind == "log_uniform" or axis.log
    distinct = sorted({float(v) for v in values}) if is_numeric(values) else []
    return len(distinct) > 2 and distinct[0] > 0 and distinct[-1] / distinct[0] >= 10


def at_best(ranked: Sequence[Standing], keys: Sequence[str]) -> list[Standing]:
    """Combinations that differ from the best one in these axes only."""
    best = ranked[0].values
    others = [key for key in best if key not in keys]
    return [entry for entry in ranked if all(str(entry.values[key]) == str(best[key]) for key in others)]


def held(ranked: Sequence[Standing], keys: Sequence[str]) -> str:
    """The fixed values of the other axes, in words."""
    best = ranked[0].values
    parts = [f"{key} {shown(value)}" for key, value in best.items() if key not in keys]
    return f" at {', '.join(parts)}" if parts else ""


def slice_chart(
    identity: str,
    plan: SweepPlan,
    key: str,
    rows: Sequence[dict[str, Any]],
    diverged: Sequence[dict[str, Any]],
    ranked: Sequence[Standing],
) -> Chart | None:
    """A metric against one axis; None if the axis has a single value."""
    metric = plan.spec.metric
    values = [row[key] for row in (*rows, *diverged)]
    if len({str(v) for v in values}) < 2:
        return None
    place, axis = _axis(plan, key, values)
    points = [
        {
            "x": place(row[key]), "y": number(row[metric]),
            "text": [f"{row[metric]:.4g}", *(f"{k} {shown(row[k])}" for k in (*plan.spec.axes, "seed"))],
        }
        for row in rows
    ]  # fmt: skip
    data: dict[str, Any] = {"x": key, "y": title(metric), "points": points, **axis}
    data["crosses"] = [{"x": place(row[key])} for row in diverged]
    entries = at_best(ranked, [key])
    if len(entries) > 1:
        line = [
            dict(
                zip(
                    ("x", "y", "low", "high"),
                    [place(e.values[key]), *short([e.metric, e.low, e.high])],
                    strict=True,
                )
            )
            for e in entries
        ]
        data["line"] = sorted(line, key=lambda point: point["x"] or 0)
    heading = f"{title(metric)} against {key}"
    return Chart(identity, heading, "points", data, f"line{held(ranked, [key])}" if len(entries) > 1 else "")


def interaction_chart(
    identity: str, plan: SweepPlan, first: str, second: str, ranked: Sequence[Standing]
) -> Chart:
    """A metric over two axes: a field where both have few values, else points of all combinations."""
    entries = at_best(ranked, [first, second])
    distinct = [{str(entry.values[key]) for entry in entries} for key in (first, second)]
    cells = len(distinct[0]) * len(distinct[1])
    if 1 < cells <= 4 * len(entries) and max(map(len, distinct)) <= FIELD_CELLS:
        heading = f"{first} and {second}{held(ranked, [first, second])}"
        return Chart(identity, heading, "field", _field(plan, first, second, entries))
    return Chart(identity, f"{first} and {second}", "points", _points(plan, first, second, ranked))


def _field(plan: SweepPlan, first: str, second: str, entries: Sequence[Standing]) -> dict[str, Any]:
    columns, lines = (_ordered([entry.values[key] for entry in entries]) for key in (first, second))
    found = {(str(e.values[first]), str(e.values[second])): number(e.metric) for e in entries}
    lines = lines[::-1]  # the largest at the top
    z = [[found.get((str(x), str(y))) for x in columns] for y in lines]
    labels = {"columns": [shown(x) for x in columns], "lines": [shown(y) for y in lines]}
    return {"x": first, "y": second, "z": z, "reverse": plan.spec.goal == "minimise", **labels}


def _points(plan: SweepPlan, first: str, second: str, ranked: Sequence[Standing]) -> dict[str, Any]:
    across, axis = _axis(plan, first, [entry.values[first] for entry in ranked])
    up, vertical = _axis(plan, second, [entry.values[second] for entry in ranked])
    points = [
        {
            "x": across(entry.values[first]), "y": up(entry.values[second]), "z": number(entry.metric),
            "text": [f"{entry.metric:.4g}", *(f"{k} {shown(v)}" for k, v in entry.values.items())],
        }
        for entry in ranked
    ]  # fmt: skip
    data: dict[str, Any] = {"x": first, "y": second, "points": points, **axis}
    data |= {"logY": vertical.get("logX", False), "reverse": plan.spec.goal == "minimise"}
    if "categories" in vertical:
        data["yCategories"] = vertical["categories"]
    return data


def _axis(plan: SweepPlan, key: str, values: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
    """The position of a value, and the axis: its categories, or its scale and ticks."""
    ordered = _ordered(values)
    if not is_numeric(values):
        places = {str(value): index for index, value in enumerate(ordered)}
        return (lambda value: places[str(value)]), {"categories": [shown(value) for value in ordered]}
    axis: dict[str, Any] = {"logX": is_logarithmic(plan, key, values)}
    if len(ordered) <= 8:  # the values themselves are the best marks
        axis["ticks"] = short(ordered)
    return (lambda value: number(value)), axis


def _ordered(values: Sequence[Any]) -> list[Any]:
    unique = list({str(value): value for value in values}.values())
    return sorted(unique) if is_numeric(unique) else unique


def shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
