"""The same trials as packed tasks, as separate pinned processes, and one after another.

A trial is CartPole-v1 by DQN, cut to a number of steps that takes a given time of one core. Packed: as
many tasks as there are cores, by `jaxrl-hpc sweep run`. Separate: a `jaxrl-hpc train` process per trial,
each pinned to a core, as many at a time as there are cores. One after another: the same processes, one at a
time, free to use every core. scripts/studies/packing.py makes a page of it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import yaml

from jaxrl_hpc.runtime import machine
from jaxrl_hpc.runtime.build import build, hypers_of
from jaxrl_hpc.runtime.host import available_cores
from jaxrl_hpc.runtime.seeds import Lane
from jaxrl_hpc.runtime.train import make_runner
from jaxrl_hpc.sweeps.plan import SweepPlan, make_plan
from jaxrl_hpc.sweeps.spec import load_spec

BASE = {"run.eval_every": 0, "run.final_eval_episodes": 8, "run.tensorboard": False}


class Length(NamedTuple):
    """A length of trial, and how many of them are measured."""

    seconds: float  # of one core
    packed: int
    separate: int
    alone: int


def plan_of(folder: Path, steps: int, trials: int, mode: str = "solo") -> tuple[Path, SweepPlan]:
    """A sweep over step sizes."""
    axis = {"grid": [3e-4, 3e-3], "points": trials, "log": True} if trials > 1 else [1e-3]
    per_task = trials if mode in ("vmap", "one_task") else -(-trials // available_cores())
    data: dict[str, Any] = {"base": "cartpole_dqn", "budget": steps, "trials_per_task": per_task}
    data |= {
        "axes": {"agent.learning_rate": axis},
        "overrides": BASE | {"run.seeds_mode": "vmap" if mode == "vmap" else "solo"},
    }
    path = folder / f"packing-{steps}-{trials}-{mode}.yaml"
    path.write_text(yaml.safe_dump(data))
    return path, make_plan(load_spec(path))


def _core_seconds() -> float:
    """CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Watch:
    """Our processes, the time they take, and their combined peak memory."""

    def __init__(self) -> None:
        self.began, self.used_before = time.perf_counter(), _core_seconds()
        self.running: list[psutil.Popen] = []
        self.peak = 0

    def start(self, command: list[str], cores: list[int]) -> None:
        ours = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)  # inherited by what is started now
        process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.sched_setaffinity(0, ours)
        self.running.append(process)

    def poll(self) -> list[psutil.Popen]:
        """Those that have ended since the last look."""
        total = 0
        for process in self.running:
            try:
                total += sum(p.memory_info().rss for p in (process, *process.children(recursive=True)))
            except psutil.Error:
                continue
        self.peak = max(self.peak, total)
        ended = [process for process in self.running if process.poll() is not None]
        for process in ended:
            assert process.returncode == 0, f"{process.args} ended with {process.returncode}"
            self.running.remove(process)
        return ended

    def finish(self) -> dict[str, float]:
        while self.running:
            self.poll()
            time.sleep(0.02)
        seconds, cores = time.perf_counter() - self.began, _core_seconds() - self.used_before
        return {"seconds": seconds, "core_seconds": cores, "peak_bytes": self.peak}


def packed(folder: Path, steps: int, trials: int, mode: str = "solo") -> dict[str, Any]:
    path, _ = plan_of(folder, steps, trials, mode)
    where = folder / f"sweep-{steps}-{trials}-{mode}"
    watch = Watch()
    command = [sys.executable, "-m", "jaxrl_hpc.cli.main", "sweep", "run", str(path), "--dir", str(where)]
    watch.start(command, sorted(os.sched_getaffinity(0)))
    result = watch.finish() | {"trials": trials}
    summaries = [json.loads(p.read_text()) for p in (where / "trials").glob("*/summary.json")]
    assert len(summaries) == trials and all(s["status"] == "finished" for s in summaries)
    training = max(summary["wall_seconds"] for summary in summaries)
    return result | {"training_seconds": training, "cores": available_cores()}


def separate(folder: Path, steps: int, trials: int, at_once: int) -> dict[str, Any]:
    """Processes that are pinned to a core each, or one at a time with all cores."""
    _, plan = plan_of(folder, steps, max(trials, 2))
    cores = sorted(os.sched_getaffinity(0))
    free = [[core] for core in cores[:at_once]] if at_once > 1 else [cores]
    watch, held = Watch(), {}
    todo = []
    for trial in plan.trials[:trials]:
        config = folder / f"{trial.id}-{at_once}.yaml"
        config.write_text(yaml.safe_dump(trial.config.to_dict()))
        todo.append((config, folder / f"run-{trial.id}-{at_once}"))
    runs = [where for _, where in todo]
    while todo or watch.running:
        while todo and free:
            config, where = todo.pop(0)
            place = free.pop()
            command = [
                sys.executable,
                "-m",
                "jaxrl_hpc.cli.main",
                "train",
                str(config),
                "--run-dir",
                str(where),
            ]
            watch.start(command, place)
            held[watch.running[-1].pid] = place
        free += [held.pop(process.pid) for process in watch.poll()]
        time.sleep(0.02)
    training = [json.loads((where / "summary.json").read_text())["wall_seconds"] for where in runs]
    return watch.finish() | {"trials": trials, "training_seconds": sum(training) / len(training)}


def compile_only(sweep_file: str) -> None:
    """Put the programs of a packed task into the compilation cache, and train nothing."""
    trials = make_plan(load_spec(sweep_file)).tasks[0].trials
    config = trials[0].config
    machine.prepare(config, len(trials))
    make_runner(config, build(config), [Lane(t.seed, hypers_of(t.config), t.id) for t in trials]).compile()


def warm_up(folder: Path, steps: int, trials: int, mode: str = "solo") -> None:
    path, _ = plan_of(folder, steps, trials, mode)
    command = [sys.executable, "-m", "jaxrl_hpc.bench.packing", str(path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def calibrate(folder: Path) -> float:
    """Steps per second of one trial on one core while the others work too."""
    steps = 40_000
    warm_up(folder, steps, 2)
    return steps / separate(folder, steps, 2, available_cores())["training_seconds"]


def measure(length: Length, rate: float, folder: Path) -> dict[str, Any]:
    """All ways of running trials of one length; `rate` is steps per second of one core."""
    steps = max(1400, round(length.seconds * rate))  # the replay fills for 1000 steps first
    row: dict[str, Any] = {"seconds": length.seconds, "steps": steps}
    warm_up(folder, steps, 2)
    row["packed"] = packed(folder, steps, length.packed)
    if length.seconds <= 1:
        warm_up(folder, steps, length.packed, "vmap")
        row["vmap"] = packed(folder, steps, length.packed, "vmap")
    else:
        warm_up(folder, steps, length.packed, "one_task")
        row["one_task"] = packed(folder, steps, length.packed, "one_task")
    row["separate"] = separate(folder, steps, length.separate, available_cores())
    row["alone"] = separate(folder, steps, length.alone, 1)
    return row | {"load": os.getloadavg()[0]}


if __name__ == "__main__":
    compile_only(sys.argv[1])
