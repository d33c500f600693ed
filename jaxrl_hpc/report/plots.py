"""Learning curves as PNG: score over seeds with its interval (ops/statistics.py).

write_plots("runs/cartpole_dqn")                       -> [runs/cartpole_dqn/plots/learning_curve.png]
learning_curves(load_runs(["runs/a", "runs/b"]), "eval", "eval_return")     -> matplotlib Figure
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.report.data import RunData, load_run
from jaxrl_hpc.report.style import MATPLOTLIB, color, title


def write_plots(run_dir: str | Path) -> list[Path]:
    """The plots of one run, into its plots/ folder."""
    run = load_run(run_dir)
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
    """Against environment steps on the left, against time on the right."""
    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(9.2, 3.6), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        for panel, axis in zip(axes, ("env_steps", "wall_seconds"), strict=True):
            for index, run in enumerate(runs):
                draw_curve(panel, run, kind, column, axis, color(index))
            panel.set_xlabel(title(axis))
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
            panel.set_xlim(left=0)
        axes[0].set_ylabel(title(column))
        axes[0].set_title(heading(runs))
        seeds = {len(run.seeds) for run in runs}
        if seeds != {1}:
            axes[1].set_title(
                "IQM and 95 % interval; mean and range of fewer than 5 seeds",
                fontweight="normal",
                color="#5b6270",
                fontsize=9,
            )
        if len(runs) > 1:
            axes[0].legend()
    return figure


def draw_curve(panel: Axes, run: RunData, kind: str, column: str, axis: str, shade: str) -> None:
    curve = run.curve(kind, column, axis)
    if curve is None:
        return
    many = len(run.seeds) > 1
    if many:
        for x, y in run.per_seed(kind, column, axis):
            panel.plot(x, y, color=shade, alpha=0.13, linewidth=0.8)
        panel.fill_between(curve.x, curve.low, curve.high, color=shade, alpha=0.2, linewidth=0)
    panel.plot(curve.x, curve.value, color=shade, label=run.name, marker="" if len(curve.x) > 1 else "o")


def heading(runs: Sequence[RunData]) -> str:
    """Environments, agents and, if all have the same number, seeds."""
    parts = []
    for values in ({run.env: None for run in runs}, {run.agent: None for run in runs}):
        parts += [", ".join(values)] if len(values) <= 4 else []
    counts = {len(run.seeds) for run in runs}
    if len(counts) == 1 and counts != {1}:
        parts.append(f"{counts.pop()} seeds")
    return " · ".join(parts)
