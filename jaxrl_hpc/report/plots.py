"""Learning curves as PNG: score over seeds with its interval or range (ops/statistics.py).

write_plots("runs/cartpole_dqn")                       -> [runs/cartpole_dqn/plots/learning_curve.png]
learning_curves(load_runs(["runs/a", "runs/b"]), "eval", "eval_return")     -> matplotlib Figure
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.ops.statistics import FEW
from jaxrl_hpc.report.data import RunData, load_run
from jaxrl_hpc.report.style import MATPLOTLIB, MUTED, colors_of, title, words

WIDE = 8.0  # a budget this many times another asks for a logarithmic axis


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
    """What to judge runs by: the evaluation return if all have it, else that of training episodes."""
    for kind, column in (("eval", "eval_return"), ("train", "episode_return")):
        if all(column in run.columns(kind) for run in runs):
            return kind, column
    raise UserError(
        f"{', '.join(run.name for run in runs)}: no returns were logged, so there is nothing to plot"
    )


def learning_curves(runs: Sequence[RunData], kind: str, column: str) -> Figure:
    """Against environment steps on the left, against time on the right; budgets far apart on a log axis."""
    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(9.2, 4.0 if len(runs) > 1 else 3.6), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        for panel, axis in zip(axes, ("env_steps", "wall_seconds"), strict=True):
            for run, shade in zip(runs, colors_of([run.name for run in runs]), strict=True):
                draw_curve(panel, run, kind, column, axis, shade)
            horizontal_axis(panel, axis)
        axes[0].set_ylabel(title(column))
        figure.suptitle(heading(runs), x=0.01, ha="left", fontsize=11, fontweight="bold")
        note(figure, spread_note([len(run.seeds) for run in runs]))
        if len(runs) > 1:
            legend_below(figure, axes[0])
    return figure


def horizontal_axis(panel: Axes, axis: str) -> None:
    """Label, ticks and scale of steps or minutes, by what is drawn."""
    drawn = [np.asarray(line.get_xdata(), np.float64) for line in panel.get_lines()]
    starts, ends = ([float(x[place]) for x in drawn if len(x)] for place in (0, -1))
    panel.set_xlabel(title(axis))
    if ends and min(starts) > 0 and max(ends) > WIDE * min(ends):
        panel.set_xscale("log")
    else:
        panel.set_xlim(left=0)
    if axis == "env_steps":
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))


def legend_below(figure: Figure, panel: Axes) -> None:
    """One legend under all panels, where it covers nothing."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=min(4, len(labels)))


def note(figure: Figure, text: str) -> None:
    """What lines and bands are, small, at the top right corner."""
    if text:
        figure.text(0.995, 0.985, text, ha="right", va="top", fontsize=8.5, color=MUTED)


def spread_note(seeds: Sequence[int]) -> str:
    """What line and band of curves with these numbers of seeds are."""
    kinds = {"many" if count >= FEW else "few" if count > 1 else "one" for count in seeds}
    texts = {
        "many": "IQM and 95 % interval over seeds",
        "few": "mean and range of fewer than 5 seeds",
        "one": "one seed",
    }
    return "; ".join(text for kind, text in texts.items() if kind in kinds and kinds != {"one"})


def draw_curve(
    panel: Axes, run: RunData, kind: str, column: str, axis: str, shade: str, label: str | None = None
) -> None:
    """One run: its score, the interval or range as a band, seeds as thin lines. Time is in minutes."""
    curve = run.curve(kind, column, axis)
    if curve is None:
        return
    per = 60.0 if axis == "wall_seconds" else 1.0
    seeds = run.per_seed(kind, column, axis, final=True)
    if len(seeds) > 1:
        for x, y in seeds:
            panel.plot(x / per, y, color=shade, alpha=0.35, linewidth=0.7)
        panel.fill_between(curve.x / per, curve.low, curve.high, color=shade, alpha=0.18, linewidth=0)
    marker = "" if len(curve.x) > 1 else "o"
    panel.plot(
        curve.x / per,
        curve.value,
        color=shade,
        label=label or words(run.name.rpartition("/")[2]),
        marker=marker,
    )


def heading(runs: Sequence[RunData]) -> str:
    """Environments, agents and, if all have the same number, seeds."""
    parts = []
    for values in ({run.env: None for run in runs}, {words(run.agent): None for run in runs}):
        parts += [", ".join(values)] if len(values) <= 4 else []
    counts = {len(run.seeds) for run in runs}
    if len(counts) == 1 and counts != {1}:
        parts.append(f"{counts.pop()} seeds")
    return " · ".join(parts)
