"""The report's section on unfinished runs: their progress, from files.

Progress comes from the metrics, the state of each rank from ranks/<n>.json (comm/watchdog.py). The job itself
is not contacted, so the page works on any machine that shares the folder.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from jaxrl_hpc.metrics.units import count, duration
from jaxrl_hpc.report.charts import Places
from jaxrl_hpc.report.data import RunData
from jaxrl_hpc.report.sections import Section, table_html
from jaxrl_hpc.report.style import title
from jaxrl_hpc.runs.lock import holder_of

NOW = (
    "episode_return",
    "lag_mean",
    "lag_max",
    "queue_depth",
    "learner_idle",
    "actor_idle",
    "dropped_unrolls",
    "actors",
)
RANKS = 256  # ranks listed; longer tables are not read


class RankState(NamedTuple):
    """The last heartbeat of a rank."""

    rank: int
    host: str
    phase: str
    chunk: int
    age: float  # seconds since


def live(runs: Sequence[RunData], places: Places) -> Section | None:
    unfinished = [run for run in runs if not run.summary]
    html = Markup("").join(_progress(run) for run in unfinished)
    return Section("live", "Progress", html) if unfinished else None


def rank_states(folder: Path, now: float | None = None) -> list[RankState]:
    """By rank. Files that cannot be read are left out: they are replaced while we look."""
    states = []
    for path in folder.glob("*.json"):
        try:
            record: dict[str, Any] = json.loads(path.read_text())
            age = (time.time() if now is None else now) - path.stat().st_mtime
            states.append(
                RankState(
                    int(record["rank"]), str(record["host"]), str(record["phase"]), int(record["chunk"]),
                    max(0.0, age),
                )
            )  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return sorted(states)


def _progress(run: RunData) -> Markup:
    total = run.setting("run", "total_env_steps")
    clock = run.clock()
    steps, wall = (float(clock[-1, 0]), float(clock[-1, 1])) if len(clock) else (0.0, 0.0)
    share = min(1.0, steps / total) if isinstance(total, int) and total > 0 else 0.0
    holder = holder_of(run.path / "run.lock")
    state = f"training: {holder}" if holder else "stopped; continue it with --resume"
    left = f", {duration(wall / share - wall)} left" if holder and 0 < share < 1 else ""
    goal = count(total) if isinstance(total, int) else "?"
    text = f"{count(steps)} of {goal} steps after {duration(wall)}{left}"
    facts = [(title(name), _last(run, name)) for name in NOW if name in run.columns("train")]
    values = " · ".join(f"{name} {count(value)}" for name, value in facts if value is not None)
    states = rank_states(run.path / "ranks")
    html = Markup(
        '<div class="card progress"><b>{0}</b> <span>{1}</span>'
        '<progress max="1" value="{2:.4f}" aria-label="progress of {0}"></progress>'
        "<span>{3}</span><small>{4}</small></div>"
    ).format(run.name, state, share, text, values)
    return html + (_ranks(states, learners_of(run)) if states else Markup(""))


def learners_of(run: RunData) -> int:
    """How many of the first ranks learn while the others act; 0 if all ranks have the same role."""
    learners = run.setting("workflow", "learners")
    return learners if isinstance(learners, int) else 0


def behind(states: Sequence[RankState], learners: int) -> list[int]:
    """How far each rank is behind the furthest one of its role: learners count chunks, actors unrolls."""
    furthest: dict[bool, int] = {}
    for state in states:
        learns = state.rank < learners
        furthest[learns] = max(furthest.get(learns, 0), state.chunk)
    return [furthest[state.rank < learners] - state.chunk for state in states]


def _ranks(states: Sequence[RankState], learners: int) -> Markup:
    lines = [
        (None, [str(s.rank), s.host, s.phase, str(s.chunk), str(late), f"{duration(s.age)} ago"])
        for s, late in zip(states[:RANKS], behind(states, learners), strict=False)
    ]
    columns = ["Rank", "Host", "Phase", "Chunk or unroll" if learners else "Chunk", "Behind", "Last update"]
    listed = f"{len(lines)} of {len(states)} ranks" if len(states) > RANKS else f"{len(states)} ranks"
    html = table_html(columns, lines, "Ranks of the job")
    return Markup("<details open><summary>{}</summary>{}</details>").format(listed, html)


def _last(run: RunData, column: str) -> float | None:
    """Mean over seeds of the newest value."""
    curves = run.seed_curves("train", column)
    return float(sum(one.values[-1] for one in curves) / len(curves)) if curves else None
