"""Taking turns: workers (worker.py) that are all ready run one at a time, round after round.

What else the machine does then falls on all of them alike, so the ratio within a round means more than
any rate; ratios are medians over rounds.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl_hpc.errors import UserError

# thread settings of the caller's shell must not leak: each library is started as by default
THREAD_SETTINGS = ("NPROC", "XLA_FLAGS", "OMP_NUM_THREADS")


class Entry(NamedTuple):
    """Who does which work, and how it is started."""

    library: str
    case: str
    mode: str = "default"  # or pinned


class Worker:
    """A process that runs when asked."""

    def __init__(self, entry: Entry):
        self.entry = entry
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the worker)
        environment = {k: v for k, v in os.environ.items() if k not in THREAD_SETTINGS}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jaxrl_hpc.bench.worker", *entry],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=environment,
        )

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            last = self.errors.read().strip().splitlines()[-1:] or ["no message"]
            raise UserError(f"bench: {' '.join(self.entry)} ended: {last[0]}")
        return json.loads(line)

    def run(self, seconds: float) -> dict[str, Any]:
        assert self.process.stdin is not None
        print(seconds, file=self.process.stdin, flush=True)
        return self.answer()

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()


def take_turns(
    entries: Sequence[Entry], seconds: float, rounds: int, say: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """One result per entry: rates of every round and their medians."""
    workers: list[Worker] = []
    at_once = max(1, len(os.sched_getaffinity(0)))  # as many compile side by side as there are cores
    try:
        for begin in range(0, len(entries), at_once):
            group = entries[begin : begin + at_once]
            say(f"compiling {', '.join(f'{e.library} ({e.mode})' for e in group)}")
            workers += [Worker(entry) for entry in group]
            for worker in workers[begin:]:
                worker.answer()
        samples: list[list[dict[str, Any]]] = [[] for _ in entries]
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for worker, kept in zip(workers, samples, strict=True):
                kept.append(worker.run(seconds))
        return [describe(worker.entry, kept) for worker, kept in zip(workers, samples, strict=True)]
    finally:
        for worker in workers:
            worker.close()


def describe(entry: Entry, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rates = [s["env_steps"] / s["seconds"] for s in samples]
    updates = [s["updates"] / s["seconds"] for s in samples]
    return {
        **entry._asdict(),
        "env_steps_per_second": statistics.median(rates),
        "updates_per_second": statistics.median(updates),
        "cpu_microseconds_per_update": statistics.median(s["cpu_seconds"] / s["updates"] for s in samples)
        * 1e6,
        "rounds": rates,
    }


def ratio(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float]:
    """How many times their rate ours is: median over rounds, and the extremes."""
    each = [a / b for a, b in zip(ours["rounds"], theirs["rounds"], strict=True)]
    return {"median": statistics.median(each), "low": min(each), "high": max(each)}


def machine_facts() -> dict[str, Any]:
    """What a reader needs to know of the machine."""
    import importlib.metadata

    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [t.split(":", 1)[1].strip() for t in info.read_text().splitlines() if "model name" in t]
        name = models[0] if models else name

    def version(package: str) -> str | None:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    return {
        "processor": name,
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "versions": {p: version(p) for p in ("jaxrl-hpc", "jax", "jaxlib", "rejax", "gymnax")},
    }
