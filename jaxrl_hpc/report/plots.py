"""Learning curves as PNG: score over seeds with its interval or range (ops/statistics.py).

write_plots("runs/cartpole_dqn")                       -> [runs/cartpole_dqn/plots/learning_curve.png]
learning_curves(load_runs(["runs/a", "runs/b"]), "eval", "eval_return")     -> matplotlib Figure
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, MultipleLocator, NullFormatter

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.ops.statistics import FEW
from jaxrl_hpc.report.data import RunData, load_run
from jaxrl_hpc.report.style import LINE, MATPLOTLIB, MUTED, colors_of, title, words

OVERLAID = 4  # more runs than that get a panel each
WIDE = 2.0  # a budget this many times another asks for a logarithmic axis


def write_plots(run_dir: str | Path, summary: dict[str, Any] | None = None) -> list[Path]:
    """The plots of one run, into its plots/ folder; `summary` where it is not written yet."""
    run = load_run(run_dir)
    if summary is not None:
        run = replace(run, summary=summary)
    kind, column = main_metric([run])
    path = run.path / "plots" / "learning_curve.png"
    path.parent.mkdir(exist_ok=True)
    learning_curves([run], kind, column).savefig(path)
    return [path]


def main_metric(runs: Sequence[RunData]) -> tuple[str, str]:
    """The metric to compare runs by: the evaluation return if all have it, else that of training episodes."""
    for kind, column in (("eval", "eval_return"), ("train", "episode_return")):
        if all(column in run.columns(kind) for run in runs):
            return kind, column
    raise UserError(
        f"{', '.join(run.name for run in runs)}: no returns were logged, so there is nothing to plot"
    )


def learning_curves(runs: Sequence[RunData], kind: str, column: str) -> Figure:
    """Against environment steps on the left and time on the right; many runs each get a panel of their own.

    Budgets that differ by more than `WIDE` are drawn on a logarithmic axis.
    """
    several = len({run.env for run in runs}) > 1
    if len(runs) > OVERLAID or (several and column == "eval_return"):
        return small_multiples(runs, kind, column, shared=not several or column != "eval_return")
    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(9.2, 4.0 if len(runs) > 1 else 3.6), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        for panel, axis in zip(axes, ("env_steps", "wall_seconds"), strict=True):
            for run, shade in zip(runs, _colors(runs), strict=True):
                draw_curve(panel, run, kind, column, axis, shade)
            horizontal_axis(panel, axis)
        axes[0].set_ylabel(title(column))
        _head(figure, runs)
        if len(runs) > 1:
            legend_below(figure, axes[0])
    return figure


def small_multiples(runs: Sequence[RunData], kind: str, column: str, shared: bool) -> Figure:
    """One panel per run, against steps, in its agent's colour; with a `shared` scale the others are grey."""
    columns = min(3, len(runs)) if len(runs) != 4 else 2
    rows = -(-len(runs) // columns)
    one_agent = len({run.agent for run in runs}) == 1
    one_each = one_agent and len({run.env for run in runs}) == len(runs)  # the environment says it all
    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(9.2, 2.3 * rows + 0.4), layout="constrained")
        axes = list(figure.subplots(rows, columns, sharex=shared, sharey=shared, squeeze=False).flat)
        for panel in axes[len(runs) :]:
            panel.set_visible(False)
        for index, (panel, run) in enumerate(zip(axes, runs, strict=False)):
            for other in runs if shared else ():
                curve = other.curve(kind, column)
                if other is not run and curve is not None:
                    panel.plot(curve.x, curve.value, color=LINE, linewidth=0.9, zorder=1)
            draw_curve(panel, run, kind, column, "env_steps", _colors([run])[0])
            panel.set_title(run.env if one_each else words(run.name.rpartition("/")[2]), fontsize=9.5)
            horizontal_axis(panel, "env_steps")
            if index + columns < len(runs):  # another panel is below
                panel.set_xlabel("")
            else:
                panel.tick_params(labelbottom=True)
        for env in {run.env for run in runs}:  # one scale, to be comparable
            same = [panel for panel, run in zip(axes, runs, strict=False) if run.env == env]
            low, high = zip(*(panel.get_ylim() for panel in same), strict=True)
            for panel in same:
                panel.set_ylim(min(low), max(high))
        figure.supylabel(title(column), fontsize=10, color=MUTED)
        _head(figure, runs)
    return figure


def _colors(runs: Sequence[RunData]) -> list[str]:
    return colors_of([run.name.rpartition("/")[2] for run in runs], [run.agent for run in runs])


def _head(figure: Figure, runs: Sequence[RunData]) -> None:
    """Title on the left, legend of lines and bands on the right; a long title is shortened."""
    remark = spread_note([len(run.seeds) for run in runs])
    text = heading(runs)
    if len(text) + 0.8 * len(remark) > 95:
        text = heading(runs, most=1)
    figure.suptitle(text, x=0.01, ha="left", fontsize=11, fontweight="bold")
    note(figure, remark)


def horizontal_axis(panel: Axes, axis: str) -> None:
    """Label, ticks and scale for steps or time, depending on the data: seconds up to three minutes."""
    drawn = [np.asarray(line.get_xdata(), np.float64) for line in panel.get_lines()]
    starts, ends = ([float(x[place]) for x in drawn if len(x)] for place in (0, -1))
    seconds = axis != "env_steps" and bool(ends) and max(ends) < 3
    per_minute = 60.0 if seconds else 1.0
    panel.set_xlabel(title(axis).replace("(min)", "(s)") if seconds else title(axis))
    if axis == "env_steps":
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    elif ends:
        panel.xaxis.set_major_formatter(FuncFormatter(lambda minutes, _: f"{per_minute * minutes:.6g}"))
    if ends and min(starts) > 0 and max(ends) > WIDE * min(ends):
        formatter = panel.xaxis.get_major_formatter()
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter(formatter)
        panel.xaxis.set_minor_formatter(NullFormatter())
        shown = round_numbers(per_minute * min(starts), per_minute * max(ends))
        panel.xaxis.set_major_locator(FixedLocator([number / per_minute for number in shown]))
        return
    panel.set_xlim(left=0)
    if seconds:
        step = next(s for s in (0.2, 0.5, 1, 2, 5, 10, 20, 30, 60) if 60 * max(ends) / s <= 7)
        panel.xaxis.set_major_locator(MultipleLocator(step / 60))


def round_numbers(low: float, high: float) -> list[float]:
    """Ticks of a logarithmic axis: powers of ten, and where these are few also 2 and 5 times them."""
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    factors = (1,) if high > 1000 * low else (1, 2, 5)
    found = [factor * 10.0**decade for decade in decades for factor in factors]
    return [number for number in found if 0.8 * low <= number <= 1.25 * high]


def legend_below(figure: Figure, panel: Axes) -> None:
    """One legend under all panels, where it covers nothing."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=min(4, len(labels)))


def note(figure: Figure, text: str) -> None:
    """A small note at the top right, for the meaning of lines and bands."""
    if text:
        figure.text(0.995, 0.985, text, ha="right", va="top", fontsize=8.5, color=MUTED)


def spread_note(seeds: Sequence[int]) -> str:
    """The meaning of line and band for curves with these numbers of seeds."""
    kinds = {"many" if count >= FEW else "few" if count > 1 else "one" for count in seeds}
    texts = {
        "many": "IQM and 95 % interval over seeds",
        "few": "mean and range of fewer than 5 seeds",
        "one": "one seed",
    }
    return "; ".join(text for kind, text in texts.items() if kind in kinds)


def draw_curve(
    panel: Axes, run: RunData, kind: str, column: str, axis: str, shade: str, label: str | None = None
) -> None:
    """One run: its score, the interval or range as a band, seeds as thin lines. Time is in minutes.

    Seeds are scored at equal steps; against time a point is at the mean time of the seeds, so that seeds of
    different speed, one process each, still give one curve.
    """
    curve = run.curve(kind, column)
    if curve is None:
        return
    seeds = run.seed_curves(kind, column)
    timed = axis == "wall_seconds"
    x = np.mean([np.interp(curve.x, one.steps, one.minutes) for one in seeds], 0) if timed else curve.x
    if len(seeds) > 1:
        for one in seeds:
            panel.plot(
                one.minutes if timed else one.steps, one.values, color=shade, alpha=0.35, linewidth=0.7
            )
        panel.fill_between(x, curve.low, curve.high, color=shade, alpha=0.18, linewidth=0)
    name = label or words(run.name.rpartition("/")[2])
    if len(seeds) == 1:  # thin, its points marked: one seed is no average
        panel.plot(x, curve.value, color=shade, label=f"{name} (one seed)", linewidth=1.0, marker=".")
    else:
        panel.plot(x, curve.value, color=shade, label=name, marker="" if len(x) > 1 else "o")


def heading(runs: Sequence[RunData], most: int = 4) -> str:
    """Environments and agents, or how many if more than `most`; seeds if all have as many."""
    parts = []
    for kind, values in (
        ("environments", [run.env for run in runs]),
        ("agents", [run.agent for run in runs]),
    ):
        names = list(dict.fromkeys(words(value) for value in values))
        parts.append(", ".join(names) if len(names) <= most else f"{len(names)} {kind}")
    counts = {len(run.seeds) for run in runs}
    if len(counts) == 1 and counts != {1}:
        parts.append(f"{counts.pop()} seeds")
    return " · ".join(parts)
