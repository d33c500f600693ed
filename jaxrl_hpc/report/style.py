"""One look for plots, report and notebooks."""

from __future__ import annotations

from typing import Any

# told apart on white and on dark, also by colour-blind readers as far as eight colours allow
PALETTE = ("#2f6fdf", "#e8710a", "#12a17b", "#b04fc7", "#d93a4a", "#1ba3c6", "#a3831a", "#7a6bd6")

MATPLOTLIB: Any = {
    "figure.dpi": 150,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": "#444a55",
    "axes.edgecolor": "#b8bec9",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e7eaf0",
    "grid.linewidth": 0.8,
    "xtick.color": "#5b6270",
    "ytick.color": "#5b6270",
    "lines.linewidth": 1.9,
    "legend.frameon": False,
}

TITLES = {
    "eval_return": "Evaluation return",
    "episode_return": "Training episode return",
    "episode_length": "Training episode length",
    "env_steps_per_second": "Environment steps per second",
    "env_steps": "Environment steps",
    "wall_seconds": "Wall time (s)",
}


def color(index: int) -> str:
    return PALETTE[index % len(PALETTE)]


def title(column: str) -> str:
    """A metric's name for people."""
    words = column.removeprefix("eval_").replace("_", " ").replace("/", ": ")
    return TITLES.get(column, words[:1].upper() + words[1:])
