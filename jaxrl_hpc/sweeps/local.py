"""All tasks of a sweep on this machine, using every core.

Each task is a separate process with its own cores, as many at a time as there are cores: devices of one
process share XLA's threads and slow each other down (docs/results/packing.md). A task that fails does not
stop the others.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxrl_hpc.runtime.host import available_cores
from jaxrl_hpc.runtime.signals import EXIT_SAVED, StopSignals
from jaxrl_hpc.sweeps.directory import SweepDirectory
from jaxrl_hpc.sweeps.plan import SweepPlan, Task

POLL_SECONDS = 0.1


def command(plan_file: Path, directory: SweepDirectory, index: int | str) -> list[str]:
    """The command that runs one task as far as possible."""
    start = [sys.executable, "-m", "jaxrl_hpc.cli.main", "sweep", "run", str(plan_file)]
    return [*start, "--dir", str(directory.path), "--trust", "--task", str(index)]


def unfinished(plan: SweepPlan, directory: SweepDirectory) -> list[Task]:
    return [task for task in plan.tasks if any(directory.result(t.id) is None for t in task.trials)]


def slots(tasks: Sequence[Task], jobs: int | None = None) -> list[list[int]]:
    """Core numbers for each of the tasks that run at the same time."""
    cores = sorted(os.sched_getaffinity(0))[: available_cores()]
    count = min(jobs or len(cores), len(tasks))
    if count >= len(cores):
        return [[cores[i % len(cores)]] for i in range(count)]
    return [cores[i * len(cores) // count : (i + 1) * len(cores) // count] for i in range(count)]


def run_all(
    plan: SweepPlan,
    plan_file: Path,
    directory: SweepDirectory,
    say: Callable[[str], None],
    jobs: int | None = None,
    quiet: bool = False,
) -> int:
    """Run all tasks; `quiet` hides their own output.

    Exit code: 0 all trials have results, 1 some task failed, 75 stopped by a signal after saving.
    """
    failed: dict[int, int] = {}
    with StopSignals() as stop:
        while todo := [t for t in unfinished(plan, directory) if t.index not in failed]:
            before = _progress(plan, directory)
            codes = _round(todo, plan_file, directory, say, stop, jobs, quiet)
            if stop.received:
                say(f"{stop.received}: all tasks have stopped; the same command continues")
                return EXIT_SAVED
            failed |= {i: code for i, code in codes.items() if code}
            if not any(codes.values()) and _progress(plan, directory) == before:
                say("the remaining tasks wait at a rung for scores of tasks that do not run")
                return 1
    for index, code in sorted(failed.items()):
        say(f"task {index} failed with exit code {code}; run it alone with --task {index} to see why")
    return 1 if failed else 0


def _progress(plan: SweepPlan, directory: SweepDirectory) -> tuple[int, int]:
    """A number that increases with the progress of a task."""
    results = sum(directory.result(trial.id) is not None for trial in plan.trials)
    return results, len(list((directory.path / "rungs").rglob("*.json")))


def _round(
    tasks: Sequence[Task],
    plan_file: Path,
    directory: SweepDirectory,
    say: Callable[[str], None],
    stop: StopSignals,
    jobs: int | None,
    quiet: bool,
) -> dict[int, int]:
    """Run each task once; exit codes by index."""
    queue = list(tasks)
    free = slots(tasks, jobs)
    running: dict[int, tuple[subprocess.Popen[bytes], list[int]]] = {}
    codes: dict[int, int] = {}
    announced = False
    while queue or running:
        while queue and free and not stop.received:
            task, cores = queue.pop(0), free.pop()
            say(f"task {task.index}: {len(task.trials)} trials on {len(cores)} core(s)")
            running[task.index] = _start(command(plan_file, directory, task.index), cores, quiet), cores
        if stop.received and not announced:
            announced = True
            queue.clear()
            for process, _ in running.values():
                process.send_signal(signal.SIGTERM)
        for index, (process, cores) in list(running.items()):
            if process.poll() is not None:
                codes[index] = process.returncode
                free.append(cores)
                del running[index]
        time.sleep(POLL_SECONDS)
    return codes


def _start(arguments: list[str], cores: list[int], quiet: bool) -> subprocess.Popen[bytes]:
    """Start a process on these cores: it inherits its parent's affinity."""
    ours = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        output = subprocess.DEVNULL if quiet else None
        return subprocess.Popen(arguments, stdout=output, stderr=output)
    finally:
        os.sched_setaffinity(0, ours)
