"""Sections of a report. Each is a small function (runs, colors) -> Section or None if it has nothing.

A new one is a function and a line in SECTIONS.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import plotly.graph_objects as go
from markupsafe import Markup, escape

from jaxrl_hpc.metrics.parquet import CLOCK_COLUMNS, CLOCK_PREFIX
from jaxrl_hpc.metrics.units import count, duration
from jaxrl_hpc.report.charts import Chart, bar_chart, curve_chart, rate_chart
from jaxrl_hpc.report.data import RunData
from jaxrl_hpc.report.style import color, title
from jaxrl_hpc.schema import flatten

Colors = dict[str, str]  # by run name


@dataclass
class Section:
    id: str
    title: str
    html: Markup = field(default_factory=lambda: Markup(""))
    charts: list[Chart] = field(default_factory=list)
    note: str = ""
    layout: str = ""  # of several charts: "pair" or "small" ones side by side


def headline(runs: Sequence[RunData], colors: Colors) -> Section | None:
    """The figures of a single run that people look for first."""
    if len(runs) > 1 or not runs[0].summary:
        return None
    s = runs[0].summary
    tiles = [
        (
            "Return",
            number(s.get("eval_return_score")),
            f"{interval(s.get('eval_return_interval'))} ({s.get('eval_spread') or '–'})",
        ),
        (
            "Environment steps",
            short(s.get("env_steps")),
            f"per seed, {s.get('seeds')} seed{'s'[: s.get('seeds') != 1]}",
        ),
        ("Steps per second", short(s.get("env_steps_per_second")), "all seeds"),
        ("Updates per second", short(s.get("updates_per_second")), "all seeds"),
        ("Wall time", seconds(s.get("wall_seconds")), f"{seconds(s.get('compile_seconds'))} compiling"),
    ]
    return Section("headline", "Result", tile_row(tiles))


def tile_row(tiles: Sequence[tuple[str, str, str]]) -> Markup:
    """Large figures: what it is, the figure, a remark."""
    html = Markup("").join(
        Markup('<div class="tile card"><span>{}</span><b>{}</b><small>{}</small></div>').format(*tile)
        for tile in tiles
    )
    return Markup('<div class="tiles">{}</div>').format(html)


def learning(runs: Sequence[RunData], colors: Colors) -> Section | None:
    """Returns: one chart per environment."""
    charts = []
    environments = list(dict.fromkeys(run.env for run in runs))
    for number_, env in enumerate(environments):
        group = [run for run in runs if run.env == env]
        for kind, column in (("eval", "eval_return"), ("train", "episode_return")):
            chart = curve_chart(f"{column}-{number_}", group, colors, kind, column, seeds=True)
            if chart:
                chart.title += f", {env}" if len(environments) > 1 else ""
                charts.append(chart)
    note = "Thin lines are single seeds." if any(len(run.seeds) > 1 for run in runs) else ""
    return Section("learning", "Learning curves", charts=charts, note=note, layout="pair") if charts else None


def other_metrics(runs: Sequence[RunData], colors: Colors) -> Section | None:
    """Everything else that was logged, small."""
    shown = {"eval_return", "episode_return", "lag_mean", "lag_max", "dropped_unrolls", *CLOCK_COLUMNS}
    charts: list[Chart] = []
    for kind in ("eval", "train"):
        for column in dict.fromkeys(name for run in runs for name in run.columns(kind)):
            if column in shown or column.startswith((CLOCK_PREFIX, "lag/")):
                continue
            chart = curve_chart(f"metric-{len(charts)}", runs, colors, kind, column)
            if chart:
                chart.title = f"{title(column)} ({'evaluation' if kind == 'eval' else 'training'})"
                charts.append(chart)
    return Section("metrics", "Other metrics", charts=charts, layout="small") if charts else None


def throughput(runs: Sequence[RunData], colors: Colors) -> Section | None:
    """Rates of finished runs, and where the time went if the run was profiled."""
    done = [run for run in runs if run.summary]
    charts = []
    if len(done) > 1:
        names, shades = [run.name for run in done], [colors[run.name] for run in done]
        for key in ("env_steps_per_second", "updates_per_second"):
            values = [float(run.summary.get(key) or 0) for run in done]
            charts.append(bar_chart(f"throughput-{key}", title(key), names, shades, values, "%{x:.3s}/s"))
    charts += [chart for chart in (rate_chart("rate", runs, colors), time_split(runs)) if chart]
    return Section("throughput", "Throughput", charts=charts, layout="small") if charts else None


def time_split(runs: Sequence[RunData]) -> Chart | None:
    """Seconds per phase (columns time/…), stacked, one bar per run."""
    phases = list(
        dict.fromkeys(c for run in runs for c in run.columns("train") if c.startswith(CLOCK_PREFIX))
    )
    if not phases:
        return None
    figure = go.Figure()
    for index, phase in enumerate(phases):
        totals = [
            sum(float(np.sum(y)) / len(run.seeds) for _, y in run.per_seed("train", phase, "env_steps"))
            for run in runs
        ]
        figure.add_bar(
            x=totals, y=[run.name for run in runs], orientation="h", marker_color=color(index),
            name=phase.removeprefix(CLOCK_PREFIX), hovertemplate="%{x:.3s}s",
        )  # fmt: skip
    figure.update_layout(template="none", barmode="stack", showlegend=True, bargap=0.45)
    figure.update_xaxes(title_text="seconds")
    figure.update_yaxes(autorange="reversed")
    return Chart("time-split", "Time by phase", figure)


def pictures(runs: Sequence[RunData], colors: Colors) -> Section | None:
    """PNGs that a run left in plots/, but for the learning curve, which is here to be explored."""
    html = Markup("")
    for run in runs:
        for path in sorted((run.path / "plots").glob("*.png")):
            if path.stem != "learning_curve":
                data = base64.b64encode(path.read_bytes()).decode()
                label = f"{title(path.stem)}, {run.name}" if len(runs) > 1 else title(path.stem)
                html += Markup(
                    '<figure class="card picture"><figcaption>{0}</figcaption>'
                    '<img alt="{0}" src="data:image/png;base64,{1}"></figure>'
                ).format(label, data)
    return Section("pictures", "Pictures", html) if html else None


def final_table(runs: Sequence[RunData], colors: Colors) -> Section | None:
    """What summary.json says, a line per run, best return first within an environment."""
    columns = ["Run", "Environment", "Agent", "Workflow", "Seeds", "Return [interval]", "Steps"]
    columns += ["Updates", "Steps/s", "Updates/s", "Wall time", "Compiling", "Parameters", "Version"]
    text_columns = {"Run", "Environment", "Agent", "Workflow", "Parameters", "Version"}
    head = Markup("").join(
        Markup("<th{}>{}</th>").format("" if c in text_columns else Markup(' class="number"'), c)
        for c in columns
    )
    body = Markup("")
    for run in sorted(runs, key=lambda run: (run.env, -(run.summary.get("eval_return_score") or -math.inf))):
        s = run.summary
        cells = [run.env, run.agent, run.setting("workflow", "name"), len(run.seeds)]
        cells += [f"{number(s.get('eval_return_score'))} [{interval(s.get('eval_return_interval'))}]"]
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
        name = Markup('<td class="swatch" style="--run: {}">{}</td>').format(colors[run.name], run.name)
        body += Markup("<tr>{}{}</tr>").format(name, line)
    return Section("final", "Final table", _table(head, body))


def configuration(runs: Sequence[RunData], colors: Colors) -> Section | None:
    """Every setting; of several runs those that differ first and marked."""
    flat = [flatten(run.config) for run in runs]
    keys = list(dict.fromkeys(key for config in flat for key in config))
    if len(runs) == 1:
        return Section("config", "Configuration", _table(Markup(""), _grouped(keys, flat), "config"))
    differing = [key for key in keys if len({repr(config.get(key)) for config in flat}) > 1]
    equal = [key for key in keys if key not in differing]
    head = Markup("<th></th>") + Markup("").join(Markup("<th>{}</th>").format(run.name) for run in runs)
    html = _table(head, _rows(differing, flat, "differs"), "config")
    if equal:
        html += Markup("<details><summary>{} settings that all runs share</summary>{}</details>").format(
            len(equal), _table(Markup(""), _grouped(equal, flat[:1]), "config")
        )
    return Section("config", "Configuration", html, note="Settings in which the runs differ.")


SECTIONS: tuple[Callable[[Sequence[RunData], Colors], Section | None], ...] = (
    headline,
    learning,
    pictures,
    final_table,
    throughput,
    configuration,
    other_metrics,
)


def _rows(keys: Sequence[str], flat: Sequence[dict[str, Any]], css: str = "") -> Markup:
    rows = Markup("")
    for key in keys:
        cells = Markup("").join(Markup("<td>{}</td>").format(_value(config.get(key, "–"))) for config in flat)
        rows += Markup('<tr class="{}"><th>{}</th>{}</tr>').format(css, key, cells)
    return rows


def _grouped(keys: Sequence[str], flat: Sequence[dict[str, Any]]) -> Markup:
    rows = Markup("")
    for group in dict.fromkeys(key.partition(".")[0] for key in keys):
        members = [key for key in keys if key.partition(".")[0] == group]
        inner = [{key.partition(".")[2] or key: config.get(key) for key in members} for config in flat]
        rows += Markup('<tr class="group"><th colspan="{}">{}</th></tr>').format(len(flat) + 1, group)
        rows += _rows(list(inner[0]), inner)
    return rows


def _table(head: Markup, body: Markup, css: str = "") -> Markup:
    top = Markup("<thead><tr>{}</tr></thead>").format(head) if head else Markup("")
    return Markup('<div class="card scroll"><table class="{}">{}<tbody>{}</tbody></table></div>').format(
        css, top, body
    )


def table_html(columns: Sequence[str], lines: Sequence[tuple[str, Sequence[str]]]) -> Markup:
    """A plain table; each line begins with a dot of its colour."""
    head = Markup("").join(Markup("<th>{}</th>").format(column) for column in columns)
    body = Markup("")
    for shade, cells in lines:
        first = Markup('<td class="swatch" style="--run: {}">{}</td>').format(shade, cells[0])
        rest = Markup("").join(Markup("<td>{}</td>").format(cell) for cell in cells[1:])
        body += Markup("<tr>{}{}</tr>").format(first, rest)
    return _table(head, body)


def _value(value: Any) -> Markup:
    return escape("–" if value is None else str(value))


def number(value: Any) -> str:
    return "–" if value is None else f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"


def short(value: Any) -> str:
    return "–" if value is None else count(value)


def seconds(value: Any) -> str:
    return "–" if value is None else duration(value)


def interval(bounds: Any, label: str = "") -> str:
    if not bounds or None in bounds:
        return "–"
    return f"{label}{number(bounds[0])} – {number(bounds[1])}"


def version(summary: dict[str, Any]) -> str:
    commit = summary.get("commit")
    return f"{summary.get('version', '–')}" + (f" ({commit[:8]})" if commit else "")
