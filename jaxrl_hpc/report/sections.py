"""Sections of a report. Each is a small function (runs, places) -> Section or None if it has nothing.

A new one is a function and a line in `sections_of`.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from jaxrl_hpc.metrics.parquet import CLOCK_COLUMNS, CLOCK_PREFIX
from jaxrl_hpc.metrics.units import count, duration
from jaxrl_hpc.ops.statistics import FEW, score
from jaxrl_hpc.report.charts import Chart, Places, StripRow, bar_chart, curve_chart, rate_chart, strip_chart
from jaxrl_hpc.report.charts import number as plain_number
from jaxrl_hpc.report.data import RunData
from jaxrl_hpc.report.style import PALETTE, title, words
from jaxrl_hpc.schema import flatten

Maker = Callable[[Sequence[RunData], Places], "Section | None"]
SHOWN_ELSEWHERE = {
    "eval_return", "episode_return", "lag_mean", "lag_max", "dropped_unrolls", "rho_clipped",
    "actors", "joined_actors", "left_actors", "lost_actors", "acknowledged_unrolls", "discarded_unrolls",
}  # fmt: skip


@dataclass
class Section:
    id: str
    title: str
    html: Markup = field(default_factory=lambda: Markup(""))
    charts: list[Chart] = field(default_factory=list)
    note: str = ""
    layout: str = ""  # of several charts: "pair" or "small" ones side by side
    folded: bool = False  # shown when the reader opens it


def sections_of(runs: Sequence[RunData], places: Places) -> list[Section]:
    """The sections of a page, from results to details."""
    from jaxrl_hpc.report.asynchrony import asynchrony
    from jaxrl_hpc.report.comparison import comparison
    from jaxrl_hpc.report.live import live
    from jaxrl_hpc.report.pictures import pictures

    makers: tuple[Maker, ...] = (
        live, headline, learning, pictures, final_scores, comparison, final_table, other_metrics, asynchrony,
        throughput, configuration,
    )  # fmt: skip
    return [section for make in makers if (section := make(runs, places)) is not None]


def headline(runs: Sequence[RunData], places: Places) -> Section | None:
    """The main results of a single run."""
    if len(runs) > 1 or not runs[0].summary:
        return None
    s = runs[0].summary
    seeds = s.get("seeds")
    tiles = [
        (
            "Final return",
            number(s.get("eval_return_score")),
            f"{interval(s.get('eval_return_interval'))} ({s.get('eval_spread') or '–'})",
        ),
        ("Environment steps", short(s.get("env_steps")), f"per seed, {seeds} seed{'s'[: seeds != 1]}"),
        ("Steps per second", short(s.get("env_steps_per_second")), "all seeds"),
        ("Updates per second", short(s.get("updates_per_second")), "all seeds"),
        ("Wall time", seconds(s.get("wall_seconds")), f"{seconds(s.get('compile_seconds'))} compiling"),
    ]
    return Section("headline", "Result", tile_row(tiles))


def tile_row(tiles: Sequence[tuple[str, str, str]]) -> Markup:
    """Tiles: name, value, remark."""
    html = Markup("").join(
        Markup('<div class="tile card"><span>{}</span><b>{}</b><small>{}</small></div>').format(*tile)
        for tile in tiles
    )
    return Markup('<div class="tiles">{}</div>').format(html)


def learning(runs: Sequence[RunData], places: Places) -> Section | None:
    """Returns: one chart per environment."""
    charts = []
    environments = list(dict.fromkeys(run.env for run in runs))
    for number_, env in enumerate(environments):
        group = [run for run in runs if run.env == env]
        for kind, column in (("eval", "eval_return"), ("train", "episode_return")):
            chart = curve_chart(f"{column}-{number_}", group, places, kind, column, seeds=True)
            if chart:
                chart.title += f", {env}" if len(environments) > 1 else ""
                charts.append(chart)
    note = f"{curve_note(runs)} The last point of an evaluation curve is the final evaluation."
    finished = any(run.summary for run in runs)
    return (
        Section(
            "learning", "Learning curves", charts=charts, note=note if finished else curve_note(runs),
            layout="pair",
        )
        if charts
        else None
    )  # fmt: skip


def curve_note(runs: Sequence[RunData]) -> str:
    """The meaning of lines and bands, for the numbers of seeds shown."""
    counts = {len(run.seeds) for run in runs}
    texts = []
    if any(n >= FEW for n in counts):
        texts.append("Thick line: interquartile mean (IQM) over seeds; band: its 95 % interval.")
    if any(1 < n < FEW for n in counts):
        texts.append(f"With fewer than {FEW} seeds the line is their mean and the band their range.")
    return " ".join([*texts, "Thin lines: single seeds."] if texts else ["One seed."])


def final_scores(runs: Sequence[RunData], places: Places) -> Section | None:
    """The final evaluation of every seed as a point: one chart per environment."""
    charts = []
    several = len({run.env for run in runs}) > 1
    for position, env in enumerate(dict.fromkeys(run.env for run in runs)):
        rows = []
        for run in runs:
            values = run.final_values() if run.env == env and run.summary else np.zeros(0)
            if len(values) > 1:
                rows.append(StripRow(run.name, places[run.name], list(values), *map(float, score(values))))
        if rows:
            heading = f"Final evaluation of every seed{f', {env}' if several else ''}"
            charts.append(strip_chart(f"final-{position}", heading, title("eval_return"), rows))
    if not charts:
        return None
    note = f"Points: seeds. Bar and tick: 95 % interval and IQM; range and mean for fewer than {FEW} seeds."
    return Section("scores", "Final evaluation", charts=charts, note=note, layout="pair")


def other_metrics(runs: Sequence[RunData], places: Places) -> Section | None:
    """Everything else that was logged, small."""
    charts: list[Chart] = []
    for kind in ("eval", "train"):
        for column in dict.fromkeys(name for run in runs for name in run.columns(kind)):
            if column in {*SHOWN_ELSEWHERE, *CLOCK_COLUMNS} or column.startswith((CLOCK_PREFIX, "lag/")):
                continue
            chart = curve_chart(f"metric-{len(charts)}", runs, places, kind, column)
            if chart:
                if kind == "train" and column.startswith("eval_"):
                    chart.title += " (training)"
                charts.append(chart)
    return Section("metrics", "Agent and environment", charts=charts, layout="small") if charts else None


def throughput(runs: Sequence[RunData], places: Places) -> Section | None:
    """Rates of finished runs, and the time by phase if the run was profiled."""
    done = [run for run in runs if run.summary]
    charts = []
    if len(done) > 1:
        for key in ("env_steps_per_second", "updates_per_second"):
            bars = [(run.name, places[run.name], float(run.summary.get(key) or 0)) for run in done]
            charts.append(bar_chart(f"throughput-{key}", title(key), "per second, all seeds", bars))
    charts += [chart for chart in (rate_chart("rate", runs, places), time_split(runs)) if chart]
    return Section("throughput", "Throughput", charts=charts, layout="small") if charts else None


def time_split(runs: Sequence[RunData]) -> Chart | None:
    """Seconds per phase (columns time/…), stacked, one bar per run."""
    phases = list(
        dict.fromkeys(c for run in runs for c in run.columns("train") if c.startswith(CLOCK_PREFIX))
    )
    if not phases:
        return None
    rows = []
    for run in runs:
        parts = []
        for index, phase in enumerate(phases):
            spent = [float(np.sum(y)) for _, y in run.per_seed("train", phase, "env_steps")]
            name = words(phase.removeprefix(CLOCK_PREFIX))
            total = plain_number(sum(spent) / len(run.seeds))
            parts.append({"color": index % len(PALETTE), "name": name, "value": total})
        rows.append({"run": run.name, "label": run.name, "parts": parts})
    return Chart("time-split", "Time by phase", "bars", {"x": "Seconds", "legend": True, "rows": rows})


def final_table(runs: Sequence[RunData], places: Places) -> Section | None:
    """The summaries of runs, one row each, best return first within an environment."""
    if len(runs) == 1 and not runs[0].summary:
        return None
    columns = [
        "Run",
        "Environment",
        "Agent",
        "Workflow",
        "Seeds",
        "Final return",
        "Interval or range",
        "Steps",
    ]
    columns += ["Updates", "Steps/s", "Updates/s", "Wall time", "Compiling", "Parameters", "Version"]
    text_columns = {"Run", "Environment", "Agent", "Workflow", "Parameters", "Version"}
    head = Markup("").join(
        Markup('<th scope="col"{}>{}</th>').format("" if c in text_columns else Markup(' class="number"'), c)
        for c in columns
    )
    body = Markup("")
    for run in sorted(runs, key=lambda run: (run.env, -(run.summary.get("eval_return_score") or -math.inf))):
        s = run.summary
        cells = [run.env, words(run.agent), words(str(run.setting("workflow", "name"))), len(run.seeds)]
        cells += [number(s.get("eval_return_score")), interval(s.get("eval_return_interval"))]
        cells += [
            short(s.get(k)) for k in ("env_steps", "updates", "env_steps_per_second", "updates_per_second")
        ]
        cells += [seconds(s.get("wall_seconds")), seconds(s.get("compile_seconds"))]
        cells += [str(s.get("params_sha256") or "–")[:10], version(s)]
        if not s:
            cells[4] = "not finished"
        line = Markup("").join(
            Markup("<td{}>{}</td>").format("" if c in text_columns else Markup(' class="number"'), cell)
            for c, cell in zip(columns[1:], cells, strict=True)
        )
        body += Markup("<tr>{}{}</tr>").format(swatch(run.name, places[run.name]), line)
    note = f"IQM and 95 % interval; mean and range for fewer than {FEW} seeds."
    return Section("final", "Summary", table(head, body, "Summary of the runs"), note=note)


def configuration(runs: Sequence[RunData], places: Places) -> Section | None:
    """Every setting of one run, changed ones marked; of several runs only those in which they differ."""
    flat = [flatten(run.config) for run in runs]
    keys = list(dict.fromkeys(key for config in flat for key in config))
    if len(runs) == 1:
        return _one_configuration(runs[0], flat[0], keys)
    differing = [key for key in keys if len({repr(config.get(key)) for config in flat}) > 1]
    head = Markup("<td></td>") + Markup("").join(
        Markup('<th scope="col">{}</th>').format(run.name) for run in runs
    )
    html = table(head, _rows(differing, flat), "Settings in which the runs differ", "config")
    note = f"Settings in which the runs differ; the other {len(keys) - len(differing)} are the same."
    return Section("config", "Configuration", html if differing else Markup(""), note=note)


def _one_configuration(run: RunData, flat: dict[str, Any], keys: Sequence[str]) -> Section:
    base = run.base
    html = Markup("")
    if base is None:
        changed, note = set[str](), "All settings of the run."
    else:
        name, usual = base
        changed = {key for key in keys if key in usual and usual[key] != flat[key] and key != "run.name"}
        note = (
            f"Marked: settings that differ from the config {name}."
            if changed
            else f"The config {name}, unchanged."
        )
        html += command_html("The command", train_command(name, flat, sorted(changed)))
    html += command_html(
        "Repeat this run bit for bit",
        f"jaxrl-hpc train {run.path}/config.yaml --run-dir {run.path}_again",
    )
    body = Markup("")
    for group in dict.fromkeys(key.partition(".")[0] for key in keys):
        members = [key for key in keys if key.partition(".")[0] == group]
        body += Markup('<tr class="group"><th scope="colgroup" colspan="2">{}</th></tr>').format(group)
        body += _rows(members, [flat], changed, strip=f"{group}.")
    return Section(
        "config",
        "Configuration",
        html + table(Markup(""), body, "Configuration", "config"),
        note=note,
        folded=True,
    )


def train_command(name: str, flat: dict[str, Any], changed: Sequence[str]) -> str:
    overrides = [shlex.quote(f"{key}={_yaml(flat[key])}") for key in changed]
    return " ".join(["jaxrl-hpc train", name, *overrides])


def _yaml(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return re.sub(r"\s", "", str(value)) if isinstance(value, list) else str(value)


def command_html(label: str, command: str) -> Markup:
    return Markup(
        '<div class="command card"><span>{}</span><code>{}</code>'
        '<button type="button" class="copy">Copy</button></div>'
    ).format(label, command)


def _rows(
    keys: Sequence[str],
    flat: Sequence[dict[str, Any]],
    marked: Collection[str] = (),
    strip: str = "",
) -> Markup:
    rows = Markup("")
    for key in keys:
        cells = Markup("").join(Markup("<td>{}</td>").format(_value(config.get(key, "–"))) for config in flat)
        mark = Markup(' class="changed"') if key in marked else ""
        note = Markup(' <span class="tag">changed</span>') if key in marked else ""
        name = key.removeprefix(strip)
        rows += Markup('<tr{}><th scope="row">{}{}</th>{}</tr>').format(mark, name, note, cells)
    return rows


def table(head: Markup, body: Markup, label: str, css: str = "") -> Markup:
    """A table in a scrollable frame, with shadows where it continues."""
    top = Markup("<thead><tr>{}</tr></thead>").format(head) if head else Markup("")
    return Markup(
        '<div class="card scroll" tabindex="0" role="region" aria-label="{}">'
        '<table class="{}">{}<tbody>{}</tbody></table></div>'
    ).format(label, css, top, body)


def swatch(name: str, place: int | None) -> Markup:
    """The first cell of a line: a dot of its run's colour and its name."""
    style = Markup(' style="--run: var(--c{})"').format(place) if place is not None else ""
    return Markup('<th scope="row" class="{}"{}>{}</th>').format(
        "swatch" if place is not None else "", style, name
    )


def table_html(
    columns: Sequence[str], lines: Sequence[tuple[int | None, Sequence[str]]], label: str = "Table"
) -> Markup:
    """A plain table; each line begins with a dot of its colour."""
    head = Markup("").join(
        Markup('<th scope="col">{}</th>').format(column) if column else Markup("<td></td>")
        for column in columns
    )
    body = Markup("")
    for place, cells in lines:
        rest = Markup("").join(Markup("<td>{}</td>").format(cell) for cell in cells[1:])
        body += Markup("<tr>{}{}</tr>").format(swatch(cells[0], place), rest)
    return table(head, body, label)


def _value(value: Any) -> Markup:
    return escape("–" if value is None else str(value))


def number(value: Any) -> str:
    return "–" if value is None else f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"


def short(value: Any) -> str:
    return "–" if value is None else count(value)


def seconds(value: Any) -> str:
    return "–" if value is None else duration(value)


def interval(bounds: Any) -> str:
    if not bounds or None in bounds:
        return "–"
    return f"{number(bounds[0])} to {number(bounds[1])}"


def version(summary: dict[str, Any]) -> str:
    commit = summary.get("commit")
    return f"{summary.get('version', '–')}" + (f" ({commit[:8]})" if commit else "")
