"""Successive halving (Jamieson and Talwalkar 2016): all trials start, the best ones continue.

With R rungs and factor f, trials are compared after 1/f^(R-1), …, 1/f of the budget, and one in f continues
each time. A rung is a pause, not a shorter run: schedules are those of the whole budget, so a trial that
finishes has the same bits as without halving.

Combinations of axis values are compared by the mean of the metric over their seeds, among all tasks. The
decision depends only on the scores, so every task finds the same answer once all scores of a rung exist.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from jaxrl_hpc.checkpoint.blocks import write_atomically
from jaxrl_hpc.config import Config
from jaxrl_hpc.read_files import read_json
from jaxrl_hpc.sweeps.directory import SweepDirectory
from jaxrl_hpc.sweeps.plan import SweepPlan, Task, Trial, digest
from jaxrl_hpc.sweeps.spec import SweepSpec


def budgets(spec: SweepSpec, config: Config) -> list[int | None]:
    """Environment steps up to each rung; None: the whole budget."""
    if spec.halving is None:
        return [None]
    total = config.run.total_env_steps
    rungs = range(spec.halving.rungs - 1, 0, -1)
    return [*(-(-total // spec.halving.factor**power) for power in rungs), None]


def combination(trial: Trial) -> str:
    """Key of trials that differ only in the seed."""
    return digest(trial.values)


def write_scores(
    plan: SweepPlan, directory: SweepDirectory, task: Task, rung: int, results: list[dict[str, Any]]
) -> None:
    """A task's file at a rung; a diverged trial has no score."""
    path = directory.scores(plan, rung) / f"{task.id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    scores = read_json(path) if path.is_file() else {}
    metric = plan.spec.metric
    for entry in results:
        value = entry[metric]
        good = not entry["diverged"] and value is not None and math.isfinite(value)
        scores[entry["trial"]] = value if good else None
    write_atomically(path, json.dumps(scores, indent=1).encode())


def read_scores(plan: SweepPlan, directory: SweepDirectory, rung: int) -> dict[str, float | None]:
    scores: dict[str, float | None] = {}
    for path in directory.scores(plan, rung).glob("*.json"):
        scores |= read_json(path)
    return scores


def competitors(plan: SweepPlan, directory: SweepDirectory, rung: int) -> list[Trial] | None:
    """Trials that take part in a rung; None while undecided."""
    if rung == 0:
        return list(plan.trials)
    going_on = survivors(plan, directory, rung - 1)
    return None if going_on is None else [trial for trial in plan.trials if trial.id in going_on]


def survivors(plan: SweepPlan, directory: SweepDirectory, rung: int) -> set[str] | None:
    """Trials that continue after a rung; None while scores of that rung are missing."""
    assert plan.spec.halving is not None
    trials = competitors(plan, directory, rung)
    scores = read_scores(plan, directory, rung)
    if trials is None or any(trial.id not in scores for trial in trials):
        return None
    sign = 1.0 if plan.spec.goal == "maximise" else -1.0
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(combination(trial), []).append(trial)

    merits: list[tuple[float, str]] = []  # ties are broken by name, so that all tasks agree
    for name, members in groups.items():
        values = [value for trial in members if (value := scores[trial.id]) is not None]
        if len(values) == len(members):  # none of its seeds diverged
            merits.append((sign * float(np.mean(values)), name))
    kept = sorted(merits, reverse=True)[: max(1, len(groups) // plan.spec.halving.factor)]
    return {trial.id for _, name in kept for trial in groups[name]}
