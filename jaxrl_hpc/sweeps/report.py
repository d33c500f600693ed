"""The page of a sweep: best combinations, one chart per axis, pairs of axes, learning curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from markupsafe import Markup

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.metrics.parquet import read_metrics
from jaxrl_hpc.ops.statistics import score_text
from jaxrl_hpc.report.charts import Places, curve_chart
from jaxrl_hpc.report.data import RunData
from jaxrl_hpc.report.page import render_page, write_page
from jaxrl_hpc.report.sections import Section, command_html, curve_note, number, short, table_html, tile_row
from jaxrl_hpc.report.style import PALETTE, title, words
from jaxrl_hpc.runs.directory import RunDirectory
from jaxrl_hpc.sweeps import charts as sweep_charts
from jaxrl_hpc.sweeps.collect import Standing, rows, standings
from jaxrl_hpc.sweeps.directory import SweepDirectory
from jaxrl_hpc.sweeps.plan import SweepPlan, make_plan
from jaxrl_hpc.sweeps.spec import load_spec
from jaxrl_hpc.sweeps.status import MISSING

BEST_ROWS = 12
CURVES = 5


class Results(NamedTuple):
    """Data for the sections."""

    plan: SweepPlan
    directory: SweepDirectory
    rows: list[dict[str, Any]]  # one per trial
    ranked: list[Standing]  # best first


def write_sweep_report(path: str | Path, output: str | Path, *, trust: bool = False) -> Path:
    """UserError if nothing has finished yet."""
    plan, directory = make_plan(load_spec(path, trust=trust)), SweepDirectory(path)
    results = Results(plan, directory, rows(plan, directory), standings(plan, directory))
    if not results.ranked:
        raise UserError(
            f"{path}: no trial has finished yet; jaxrl-hpc sweep status {path} shows its progress"
        )
    curves = [_curve_data(results, entry) for entry in results.ranked[:CURVES]]
    places = {run.name: index % len(PALETTE) for index, run in enumerate(curves)}
    sections = [headline(results), best_table(results, places), slices(results), interactions(results)]
    sections += [learning(results, curves, places), outcome_table(results)]
    spec = plan.spec
    steps = short(plan.trials[0].config.run.total_env_steps)
    subtitle = f"{curves[0].env} · {words(curves[0].agent)} · {len(plan.trials)} trials of {steps} steps"
    page = render_page(f"Sweep {spec.name}", subtitle, places, [s for s in sections if s is not None])
    return write_page(page, output)


def label(values: dict[str, Any]) -> str:
    """A combination in few words."""
    return ", ".join(f"{key.rpartition('.')[2]} {_text(value)}" for key, value in values.items()) or "base"


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _curve_data(results: Results, entry: Standing) -> RunData:
    """All seeds of a combination as one run."""
    members = [r for r in results.rows if r["combination"] == entry.combination and r["status"] != MISSING]
    tables = [read_metrics(results.directory.trials / row["trial"]) for row in members]
    first = RunDirectory(results.directory.trials / entry.trial)
    table = pa.concat_tables(tables, promote_options="permissive")
    summaries = [
        RunDirectory(results.directory.trials / row["trial"]).read_summary() or {} for row in members
    ]
    together: dict[str, Any] = {}
    for summary in summaries:  # the final evaluation of every seed is the last point of its curve
        for key, value in summary.items():
            merge = key.endswith("_per_seed") and isinstance(value, dict)
            together[key] = {**together.get(key, {}), **value} if merge else value
    return RunData(label(entry.values), first.path, first.read_config(), together, table)


def headline(results: Results) -> Section:
    best, spec = results.ranked[0], results.plan.spec
    counts = {
        name: sum(row["status"] == name for row in results.rows) for name in ("diverged", "stopped", MISSING)
    }
    done = len(results.rows) - counts[MISSING]
    notes = [f"{number_} {name}" for name, number_ in counts.items() if number_]
    steps = sum(row["env_steps"] or 0 for row in results.rows)
    interval = score_text(best.seeds)
    interval += f": {number(best.low)} to {number(best.high)}" if best.seeds > 1 else ""
    tiles = [
        (f"Best {title(spec.metric).lower()}", number(best.metric), interval),
        ("Trials done", f"{done} of {len(results.rows)}", ", ".join(notes) or "all finished"),
        ("Combinations", str(len({row["combination"] for row in results.rows})), f"{spec.seeds} seeds each"),
        ("Environment steps", short(steps), "all trials"),
    ]
    return Section("headline", "Result", tile_row(tiles))


def best_table(results: Results, places: Places) -> Section:
    spec = results.plan.spec
    columns = ["Rank", *spec.axes, title(spec.metric), "Seeds", "Diverged", "Trial"]
    lines = []
    for position, entry in enumerate(results.ranked[:BEST_ROWS]):
        swatch = places.get(label(entry.values))
        interval = f" [{number(entry.low)} to {number(entry.high)}]" if entry.seeds > 1 else ""
        cells = [str(position + 1), *(_text(value) for value in entry.values.values())]
        cells += [
            f"{number(entry.metric)}{interval}",
            str(entry.seeds),
            str(entry.diverged or "–"),
            entry.trial,
        ]
        lines.append((swatch, cells))
    best = results.directory.trials / results.ranked[0].trial / "config.yaml"
    note = f"The best {len(lines)} of {len(results.ranked)} combinations with a result. "
    note += f"In brackets: {score_text(results.ranked[0].seeds).partition(', ')[2] or 'one seed'}."
    html = table_html(columns, lines, "Best combinations")
    html += command_html(
        "Repeat the best one alone, bit for bit", f"jaxrl-hpc train {best} --run-dir runs/best"
    )
    return Section("best", "Best combinations", html, note=note)


def slices(results: Results) -> Section | None:
    """The metric against each axis: a point per trial, a line through the scores of its values."""
    spec = results.plan.spec
    done = [r for r in results.rows if r["status"] == "finished" and r.get(spec.metric) is not None]
    diverged = [row for row in results.rows if row["status"] == "diverged"]
    made = [
        sweep_charts.slice_chart(f"slice-{position}", results.plan, key, done, diverged, results.ranked)
        for position, key in enumerate(spec.axes)
    ]
    charts = [chart for chart in made if chart is not None]
    note = f"Points: the {len(done)} of {len(results.rows)} trials that finished. Line: the other axes "
    note += "fixed at the values of the best combination, score over seeds with its interval or range."
    note += " Crosses at the bottom: trials that diverged." if diverged else ""
    return Section("slices", "Axis by axis", charts=charts, note=note, layout="pair") if charts else None


def interactions(results: Results) -> Section | None:
    """Pairs of axes: does the best value of one depend on the other?"""
    keys = [key for key in results.plan.spec.axes if len({_text(row[key]) for row in results.rows}) > 1]
    pairs = [(a, b) for i, a in enumerate(keys) for b in keys[i + 1 :]]
    charts = [
        sweep_charts.interaction_chart(f"pair-{i}", results.plan, a, b, results.ranked)
        for i, (a, b) in enumerate(pairs)
    ]
    note = f"Colour and number: {title(results.plan.spec.metric).lower()}, score over seeds, the other axes "
    note += "fixed at the values of the best combination; if few combinations share "
    note += "those, all are shown as points."
    return Section("pairs", "Two axes at a time", charts=charts, note=note, layout="pair") if charts else None


def learning(results: Results, curves: Sequence[RunData], places: Places) -> Section | None:
    spec = results.plan.spec
    metrics = dict.fromkeys([("eval", spec.metric), ("eval", "eval_return"), ("train", "episode_return")])
    made = [
        curve_chart(f"curve-{position}", curves, places, kind, column, seeds=True)
        for position, (kind, column) in enumerate(metrics)
    ]
    charts = [chart for chart in made if chart is not None]
    note = f"The best {len(curves)} of {len(results.ranked)} combinations. {curve_note(curves)}"
    return Section("learning", "Learning curves", charts=charts, note=note, layout="pair") if charts else None


def outcome_table(results: Results) -> Section | None:
    """Trials that did not finish, and the reason."""
    spec = results.plan.spec
    lines = []
    for row in results.rows:
        if row["status"] == "finished":
            continue
        at = row["diverged_at"] if row["status"] == "diverged" else row["env_steps"]
        cells = [
            *(_text(row[key]) for key in spec.axes),
            str(row["seed"]),
            row["status"],
            short(at),
            row["trial"],
        ]
        lines.append((None, cells))
    if not lines:
        return None
    columns = [*spec.axes, "Seed", "Status", "At step", "Trial"]
    html = table_html(columns, lines, "Trials that did not finish")
    return Section(
        "others",
        "Trials that did not finish",
        Markup("<details><summary>{} trials</summary>{}</details>").format(len(lines), html),
    )
