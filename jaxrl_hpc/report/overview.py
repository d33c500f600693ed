"""One page over all runs of a folder: runs/index.html, a line per run with a sparkline, sortable.

    write_overview("runs")

Everything is read from files, including those of running jobs: progress, lag, queue depth, and the last
heartbeats of ranks. Jobs are not contacted, and no server is needed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np
from markupsafe import Markup

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.metrics.units import count, duration
from jaxrl_hpc.report.data import RunData, load_run
from jaxrl_hpc.report.live import behind, learners_of, rank_states
from jaxrl_hpc.report.page import fill, write_page
from jaxrl_hpc.report.sections import number
from jaxrl_hpc.report.style import words
from jaxrl_hpc.runs.listing import RunEntry, listing, sweeps_in

POINTS = 60  # of a sparkline
WIDTH, HEIGHT = 120, 28


@dataclass(frozen=True)
class Line:
    """A row of the page, with sort keys for texts that do not sort alphabetically."""

    name: str
    link: str  # the run's own page, relative to this one; empty if there is none
    agent: str
    env: str
    state: str
    share: float  # of the budget, 0 to 1
    steps: str
    score: str
    score_key: float
    curve: Markup
    live: str  # of a running job: lag, queue depth, ranks
    age: str
    age_key: float


def write_overview(folder: str | Path, reload_seconds: int = 0) -> Path:
    """Make <folder>/index.html; UserError if there are no runs."""
    root = Path(folder)
    entries, sweeps = listing(root), sweeps_in(root)
    if not entries and not sweeps:
        raise UserError(f"there are no runs in {folder}")
    page = fill(
        "overview.html.j2",
        title=root.resolve().name,
        lines=[line_of(entry, root) for entry in entries],
        sweeps=[_sweep(path, root) for path in sweeps],
        training=sum(entry.state == "training" for entry in entries),
        reload_seconds=reload_seconds,
    )
    return write_page(page, root / "index.html")


def line_of(entry: RunEntry, root: Path) -> Line:
    path = Path(entry.path)
    try:
        run: RunData | None = load_run(path)
    except UserError:
        run = None  # nothing logged yet, or damaged: show what is known
    steps, total = entry.env_steps or 0, entry.total_env_steps or 0
    if run is not None and entry.state != "finished" and len(clock := run.clock()):
        steps = max(steps, int(clock[-1, 0]))
    share = min(1.0, steps / total) if total > 0 else float(entry.state == "finished")
    report = path / "report.html"
    score = float(entry.score) if entry.score is not None else None
    return Line(
        name=os.path.relpath(path, root),
        link=_link(report, root),
        agent=words(entry.agent or "?"),
        env=entry.env or "?",
        state=entry.state,
        share=share,
        steps=count(steps),
        score=number(score),
        score_key=score if score is not None and np.isfinite(score) else -1e30,
        curve=sparkline(run) if run is not None else Markup(""),
        live=_live(run) if run is not None and entry.state == "training" else "",
        age=duration(entry.age_seconds),
        age_key=entry.age_seconds,
    )


def sparkline(run: RunData) -> Markup:
    """The evaluation return, or that of training episodes, as a line without axes."""
    curve = run.curve("eval", "eval_return")
    if curve is None or len(curve.x) < 2:
        curve = run.curve("train", "episode_return")
    if curve is None or len(curve.x) < 2:
        return Markup("")
    keep = np.unique(np.linspace(0, len(curve.x) - 1, POINTS).round().astype(int))
    x, y = curve.x[keep], curve.value[keep]
    low, high = float(y.min()), float(y.max())
    across = 2 + (WIDTH - 4) * (x - x[0]) / max(float(x[-1] - x[0]), 1e-12)
    up = HEIGHT - 3 - (HEIGHT - 6) * (y - low) / ((high - low) or 1.0)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, up, strict=True))
    return Markup(
        '<svg class="spark" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="img" '
        'aria-label="from {2:.4g} to {3:.4g}"><polyline points="{4}"/></svg>'
    ).format(WIDTH, HEIGHT, float(y[0]), float(y[-1]), points)


def _live(run: RunData) -> str:
    """lag 1.2 · queue 3 · 4 ranks, last update 2 s ago"""
    parts = []
    for column, word in (("lag_mean", "lag"), ("queue_depth", "queue")):
        curves = run.seed_curves("train", column)
        if curves:
            parts.append(f"{word} {np.mean([one.values[-1] for one in curves]):.3g}")
    if states := rank_states(run.path / "ranks"):
        late = max(states, key=lambda state: state.age)
        parts.append(f"{len(states)} ranks, at most {max(behind(states, learners_of(run)))} chunks apart")
        parts.append(f"rank {late.rank} last updated {duration(late.age)} ago")
    return " · ".join(parts)


def _sweep(path: Path, root: Path) -> tuple[str, str]:
    """(name, link to its page if it has one)"""
    report = path / "report.html"
    return os.path.relpath(path, root), _link(report, root)


def _link(report: Path, root: Path) -> str:
    """To a page, if there is one. Quoted: a folder may have any name, such as `javascript:…`."""
    return quote(os.fsencode(os.path.relpath(report, root))) if report.is_file() else ""
