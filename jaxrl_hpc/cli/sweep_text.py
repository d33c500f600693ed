"""Output of `jaxrl-hpc sweep`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from jaxrl_hpc.metrics.units import count
from jaxrl_hpc.sweeps import slurm
from jaxrl_hpc.sweeps.collect import Standing, standings, write_table
from jaxrl_hpc.sweeps.directory import SweepDirectory
from jaxrl_hpc.sweeps.halving import budgets, combination
from jaxrl_hpc.sweeps.plan import SweepPlan, Trial, is_traced
from jaxrl_hpc.sweeps.status import MISSING, sweep_status

SHOWN_COMBINATIONS = 20
SHOWN_BEST = 5
ORDER = ("finished", "stopped", "diverged", MISSING)


def number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def settings(values: dict[str, Any]) -> str:
    return (
        "  ".join(f"{key.partition('.')[2]}={number(value)}" for key, value in values.items()) or "the base"
    )


def _console() -> Console:
    """Lines are not wrapped in files and pipes."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=240)


def show_plan(plan: SweepPlan, directory: SweepDirectory, as_json: bool) -> None:
    if as_json:
        tasks = [
            {"index": t.index, "id": t.id, "trials": [_plain(trial) for trial in t.trials]}
            for t in plan.tasks
        ]
        print(json.dumps({"name": plan.spec.name, "directory": str(directory.path), "tasks": tasks}))
        return
    directory.check_unchanged(plan)
    console = _console()
    spec, steps = plan.spec, plan.trials[0].config.run.total_env_steps
    combinations = _by_combination(plan.trials)
    console.print(
        f"[bold]{spec.name}[/]: {_many(len(plan.trials), 'trial')} of {count(steps)} steps "
        f"({_many(len(combinations), 'combination')} × {_many(spec.seeds, 'seed')}) in "
        f"{_many(len(plan.tasks), 'task')}; results in {directory.path}"
    )
    if plan.repeated:
        console.print(f"{plan.repeated} trials duplicate an earlier one and are left out")
    if spec.halving:
        rungs = [count(budget) for budget in budgets(spec, plan.trials[0].config) if budget]
        console.print(
            f"successive halving: one in {spec.halving.factor} continues after {', '.join(rungs)} steps"
        )
    if spec.axes:
        console.print(_axes(plan), "")
    console.print(_packing(plan, directory))
    hidden = sum(len(_by_combination(t.trials)) for t in plan.tasks) - SHOWN_COMBINATIONS
    if hidden > 0:
        console.print(f"… and {hidden} more combinations; --json shows all")


def _many(number_: int, what: str) -> str:
    return f"{number_} {what}{'' if number_ == 1 else 's'}"


def _by_combination(trials: Iterable[Trial]) -> dict[str, list[Trial]]:
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(combination(trial), []).append(trial)
    return groups


def _axes(plan: SweepPlan) -> Table:
    table = Table("axis", "values", "how they run", box=None, pad_edge=False)
    for key, axis in plan.spec.axes.items():
        taken = list(dict.fromkeys(number(trial.values[key]) for trial in plan.trials))
        shown = ", ".join(taken[:6]) + (f", … ({len(taken)})" if len(taken) > 6 else "")
        traced = all(is_traced(trial.config, key) for trial in plan.trials)
        how = "traced: side by side in one program" if traced else "static: one program and task each"
        table.add_row(key, f"{axis.kind}: {shown}", how)
    return table


def _packing(plan: SweepPlan, directory: SweepDirectory) -> Table:
    """A line per combination, task after task."""
    short = [key.partition(".")[2] for key in plan.spec.axes]
    table = Table("task", "trials", *short, "seeds", "results", box=None, pad_edge=False)
    for task in plan.tasks:
        for position, trials in enumerate(_by_combination(task.trials).values()):
            if table.row_count == SHOWN_COMBINATIONS:
                return table
            label = (str(task.index), str(len(task.trials))) if position == 0 else ("", "")
            results = [directory.result(trial.id) for trial in trials]
            states = Counter(result["status"] for result in results if result)
            table.add_row(
                *label,
                *(number(value) for value in trials[0].values.values()),
                slurm.ranges([trial.seed for trial in trials]),
                ", ".join(f"{n} {state}" for state, n in states.items()) or "–",
            )
    return table


def _plain(trial: Trial) -> dict[str, Any]:
    return {"id": trial.id, "seed": trial.seed, "values": trial.values}


def show_status(plan: SweepPlan, directory: SweepDirectory, as_json: bool) -> None:
    status = sweep_status(plan, directory)
    queued = slurm.jobs_in_queue(directory.slurm)
    if as_json:
        tasks = [asdict(task) | {"state": task.state} for task in status.tasks]
        data = {"directory": str(directory.path), "counts": status.counts, "tasks": tasks, "jobs": queued}
        print(json.dumps(data | {"others": status.others}))
        return
    console = _console()
    done = sum(n for name, n in status.counts.items() if name != MISSING)
    parts = [f"{status.counts[name]} {name}" for name in ORDER if status.counts.get(name)]
    console.print(f"[bold]{plan.spec.name}[/]: {done} of {len(plan.trials)} trials done ({', '.join(parts)})")
    table = Table("task", "state", "trials", "", box=None, pad_edge=False)
    total = count(plan.trials[0].config.run.total_env_steps)
    for task in status.tasks:
        if task.done:
            continue
        detail = f"{count(task.env_steps)} of {total} steps on disk" if task.env_steps else ""
        if task.running:
            detail = f"{task.running}{'; ' if detail else ''}{detail}"
        share = f"{sum(task.counts.values()) - task.counts[MISSING]}/{sum(task.counts.values())}"
        table.add_row(str(task.index), task.state, share, detail)
    if table.row_count:
        console.print(table)
    if queued:
        console.print(f"in the queue: job {', '.join(queued)}")
    if status.others:
        console.print(f"{status.others} results here belong to trials that are not in the sweep file")
    show_best(plan, directory)


def show_best(plan: SweepPlan, directory: SweepDirectory) -> None:
    """The best combinations so far, and the command that trains the first of them again."""
    ranked = standings(plan, directory)
    if not ranked:
        return
    console = _console()
    table = Table(plan.spec.metric, "interval", "seeds", "settings", box=None, pad_edge=False)
    for entry in ranked[:SHOWN_BEST]:
        table.add_row(f"{entry.metric:.4g}", _interval(entry), str(entry.seeds), settings(entry.values))
    console.print(table)
    best = directory.trials / ranked[0].trial / "config.yaml"
    console.print(f"repeat the best trial alone: jaxrl-hpc train {best} --run-dir runs/best")


def _interval(entry: Standing) -> str:
    return f"{entry.low:.4g} to {entry.high:.4g}" if entry.seeds > 1 else "–"


def collect(plan: SweepPlan, directory: SweepDirectory, path: Path) -> None:
    table = write_table(plan, directory, path)
    missing = sum(status == MISSING for status in table["status"].to_pylist())
    note = f" ({missing} without a result yet)" if missing else ""
    print(f"wrote {path}: {table.num_rows} trials{note}, {table.num_columns} columns")
