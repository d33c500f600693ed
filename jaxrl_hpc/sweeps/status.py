"""Progress of a sweep, from its files alone, on any machine that sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow.compute as pc

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.metrics.parquet import read_metrics
from jaxrl_hpc.runs.lock import holder_of
from jaxrl_hpc.sweeps.directory import SweepDirectory
from jaxrl_hpc.sweeps.plan import SweepPlan, Task

MISSING = "missing"


@dataclass(frozen=True)
class TaskStatus:
    """One task."""

    index: int
    id: str
    counts: dict[str, int]  # finished, diverged, stopped, missing -> trials
    running: str | None  # the process that works on it
    env_steps: int  # progress of unfinished work, as far as it is on disk
    waiting: bool  # for other tasks at a rung of successive halving

    @property
    def done(self) -> bool:
        return not self.counts.get(MISSING)

    @property
    def state(self) -> str:
        if self.done:
            return "done"
        if self.running:
            return "running"
        if self.waiting:
            return "waiting"
        return "interrupted" if self.env_steps else "to do"


class SweepStatus(NamedTuple):
    """The whole."""

    tasks: list[TaskStatus]
    counts: dict[str, int]
    others: int  # trials with a result that the plan does not have


def sweep_status(plan: SweepPlan, directory: SweepDirectory) -> SweepStatus:
    tasks = [_task_status(task, directory) for task in plan.tasks]
    counts: dict[str, int] = {}
    for task in tasks:
        for name, number in task.counts.items():
            counts[name] = counts.get(name, 0) + number
    planned = {trial.id for trial in plan.trials}
    found = {p.name for p in directory.trials.iterdir()} if directory.trials.is_dir() else set()
    return SweepStatus(tasks, counts, len(found - planned))


def _task_status(task: Task, directory: SweepDirectory) -> TaskStatus:
    counts: dict[str, int] = {}
    for trial in task.trials:
        result = directory.result(trial.id)
        name = result["status"] if result else MISSING
        counts[name] = counts.get(name, 0) + 1
    folder = directory.task(task)
    rungs = sorted((folder / "work").glob("rung-*")) if counts.get(MISSING) else []
    waiting = bool(rungs) and (rungs[-1] / "summary.json").is_file()
    holder = holder_of(folder / "run.lock")
    return TaskStatus(task.index, task.id, counts, holder, _saved_steps(rungs), waiting)


def _saved_steps(runs: Sequence[Path]) -> int:
    """Environment steps of the newest row of metrics in unfinished work."""
    newest = 0
    for run in runs:
        try:
            table = read_metrics(run)
        except (UserError, OSError):
            continue  # being made, or being deleted
        if table.num_rows:
            newest = max(newest, pc.max(table["env_steps"]).as_py())
    return newest
