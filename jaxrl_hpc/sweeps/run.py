"""One task of a sweep: trains its trials side by side, then writes a result for each.

A task can be started again at any time: finished trials are kept, a task that was stopped or killed continues
from its checkpoint, a trial with a damaged result is trained again alone. With successive halving a task does
its part of a rung, and ends when it has to wait for other tasks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl_hpc.checkpoint.blocks import write_atomically
from jaxrl_hpc.config import Config
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.metrics.parquet import read_metrics
from jaxrl_hpc.metrics.progress import Progress
from jaxrl_hpc.read_files import read_json
from jaxrl_hpc.rollout import Evaluation
from jaxrl_hpc.runs import files
from jaxrl_hpc.runs.lock import RunLock
from jaxrl_hpc.runtime import machine
from jaxrl_hpc.runtime.build import build, hypers_of
from jaxrl_hpc.runtime.seeds import Lane
from jaxrl_hpc.runtime.summary import describe
from jaxrl_hpc.runtime.train import train
from jaxrl_hpc.runtime.trainer import Segment
from jaxrl_hpc.sweeps import halving
from jaxrl_hpc.sweeps.directory import DIVERGED, FINISHED, STOPPED, SweepDirectory
from jaxrl_hpc.sweeps.plan import SweepPlan, Task, Trial

Say = Callable[[str], None]
DONE, SAVED, WAITING = "done", "saved", "waiting"
PAUSED = {
    SAVED: "saved and stopped on request; the same command continues",
    WAITING: "waits for other tasks at a rung; repeat the command after those",
}


RECORD_LOST = (
    "without it the trials in {work} are unknown: restore it, or remove that folder to train them again"
)


class Output(NamedTuple):
    """Output of a task."""

    say: Say
    progress: type[Progress]


class TaskOutcome(NamedTuple):
    """Result of a call of run_task."""

    state: str  # DONE; SAVED: stopped by a signal, state on disk; WAITING: for other tasks at a rung
    text: str  # one line of text


def run_task(
    plan: SweepPlan,
    directory: SweepDirectory,
    index: int,
    say: Say = print,
    progress: type[Progress] = Progress,
) -> TaskOutcome:
    """Run a task as far as possible. `say` gets lines of text, `progress` displays its progress."""
    output = Output(say, progress)
    task = plan.task(index)
    folder = directory.task(task)
    folder.mkdir(parents=True, exist_ok=True)
    with RunLock(folder / "run.lock"):
        checked = False
        while pending := [t for t in task.trials if directory.result(t.id) is None]:
            if not checked:
                machine.prepare(pending[0].config, len(pending))  # building starts JAX
                check_metric(plan, pending[0].config)
                checked = True
            work = folder / "work"
            trials = _lanes_of_work(work, task, pending)
            state = _run_rungs(plan, directory, task, trials, work, output)
            if state != DONE:
                return TaskOutcome(state, f"task {index}: {PAUSED[state]}")
            _clear(work)
    return TaskOutcome(DONE, f"task {index}: all {len(task.trials)} trials have a result")


def _lanes_of_work(work: Path, task: Task, pending: Sequence[Trial]) -> list[Trial]:
    """The trials that an interrupted start was training, else those without a result.

    Some results may exist already: a task that was killed while writing results still has to write the
    others.
    """
    record = work / "trials.json"
    known = {trial.id: trial for trial in task.trials}
    if record.exists():
        try:
            return [known[identity] for identity in read_json(record)]
        except (UserError, TypeError, KeyError) as error:
            raise UserError(f"{record} cannot be read, and {RECORD_LOST.format(work=work)}") from error
    if any(work.glob("rung-*")):
        raise UserError(f"{record} is missing, and {RECORD_LOST.format(work=work)}")
    work.mkdir(exist_ok=True)
    write_atomically(record, json.dumps([trial.id for trial in pending]).encode())
    return list(pending)


def _clear(work: Path) -> None:
    """Delete the files of a finished task, and nothing else."""
    for folder in sorted(work.glob("rung-*")):
        files.discard(folder)
    (work / "trials.json").unlink()  # last: rungs without it would count as damage
    for folder in (work / "results", work):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _run_rungs(
    plan: SweepPlan,
    directory: SweepDirectory,
    task: Task,
    trials: Sequence[Trial],
    work: Path,
    output: Output,
) -> str:
    """Train to the end, rung after rung (one without halving), and write results."""
    budgets = halving.budgets(plan.spec, trials[0].config)
    folders: list[Path] = []
    for rung, until in enumerate(budgets):
        folder = work / f"rung-{rung}"
        summary = _train(task, trials, folder, folders[-1] if folders else None, until, output)
        if summary is None:
            return SAVED
        folders.append(folder)
        last = rung == len(budgets) - 1
        going_on: set[str] = set()
        if not last:
            halving.write_scores(plan, directory, task, rung, summary["trials"])
            survivors = halving.survivors(plan, directory, rung)
            if survivors is None:
                return WAITING
            going_on = survivors
        results = {entry["trial"]: entry for entry in summary["trials"]}
        stays = [t for t in trials if t.id in going_on]
        ends = [t for t in trials if t.id not in going_on]
        status = FINISHED if last else STOPPED
        _write_results(directory, task, ends, results, folders, work / "results", status)
        trials = stays
        if not trials:
            break
    return DONE


def _train(
    task: Task, trials: Sequence[Trial], folder: Path, before: Path | None, until: int | None, output: Output
) -> dict[str, Any] | None:
    """The summary of a segment of the packed run; None if a signal stopped it."""
    config = trials[0].config  # the others differ in what their lanes carry
    run = config.run.model_copy(
        update={"name": f"{config.run.name.rpartition('-')[0]}.{task.id[:6]}", "tensorboard": False}
    )
    config = config.model_copy(update={"run": run})
    lanes = [Lane(trial.seed, hypers_of(trial.config), trial.id) for trial in trials]
    segment = Segment(until, previous=before)
    outcome = train(
        config, folder, resume=True, lanes=lanes, segment=segment, say=output.say, progress=output.progress
    )
    return outcome.summary


def _write_results(
    directory: SweepDirectory,
    task: Task,
    trials: Sequence[Trial],
    results: dict[str, dict[str, Any]],
    folders: Sequence[Path],
    work: Path,
    status: str,
) -> None:
    """One folder per trial, from the files of the packed runs alone."""
    shared = read_json(folders[-1] / "summary.json")
    lanes = len(shared.pop("trials"))
    seconds = shared["wall_seconds"]
    rows: dict[str, list[dict[str, Any]]] = {trial.id: [] for trial in trials}
    for folder in folders:
        for row in read_metrics(folder).to_pylist():
            if (name := row.pop("trial")) in rows:
                rows[name].append(row)
    for trial in trials:
        if directory.result(trial.id) is not None:
            continue
        own = dict(results[trial.id])
        ended = DIVERGED if own.pop("diverged") else status
        summary = shared | own | {
            "status": ended,
            "values": trial.values,
            "seed": trial.seed,
            "seeds": 1,
            "eval_return_per_seed": {str(trial.seed): own["eval_return"]},
            "diverged_at": first_not_finite(rows[trial.id]) if ended == DIVERGED else None,
            "env_steps_per_second": shared["env_steps"] / seconds,
            "updates_per_second": shared["updates"] / seconds,
            "task": task.id,
            "trials_side_by_side": lanes,
        }  # fmt: skip
        directory.write_result(work, trial, summary, rows[trial.id])


def first_not_finite(rows: Sequence[dict[str, Any]]) -> int | None:
    """Environment steps of the first training row with a NaN."""
    for row in rows:
        learned = {k: v for k, v in row.items() if not k.startswith("episode") and isinstance(v, float)}
        if row["kind"] == "train" and not np.isfinite(list(learned.values())).all():
            return int(row["env_steps"])
    return None


def check_metric(plan: SweepPlan, config: Config) -> None:
    """Refuse metrics that evaluations do not have before training."""
    if plan.spec.metric == "eval_return":
        return
    parts = build(config)
    one = np.ones(1, np.float32)
    info = dict.fromkeys(parts.env.spec.info_keys, one)
    known = describe(parts, Evaluation(one, one, one > 0, info))  # type: ignore[arg-type]
    if plan.spec.metric not in known:
        raise UserError(f"metric: {plan.spec.metric!r} is not evaluated here; known are {', '.join(known)}")
