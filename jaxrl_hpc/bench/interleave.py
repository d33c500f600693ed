"""Interleaved measurement: workers (worker.py) run one at a time in turns, round after round.

Other load on the machine then affects all of them alike, so ratios within a round are more reliable than
rates; ratios are medians over rounds.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl_hpc.bench.cases import Work
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runs.directory import code_version

PEER_WORKER = Path(__file__).parent / "peers" / "worker.py"

# thread settings of the caller's shell must not leak: each library is started as by default
THREAD_SETTINGS = ("NPROC", "XLA_FLAGS", "OMP_NUM_THREADS")
NO_CACHE = {"JAX_ENABLE_COMPILATION_CACHE": "false"}  # every library compiles everything itself
PINNED_CORES = 1.05  # most that a pinned process may use: one, and what two clocks differ by


class Entry(NamedTuple):
    """A library, its workload, and how it is started."""

    library: str
    case: str
    work: Work
    mode: str = "default"  # or pinned


class Peers(NamedTuple):
    """Where other libraries are found."""

    python: str = sys.executable  # of the environment that has them
    paths: Mapping[str, str] = {}  # checkouts of those that are no packages

    def command(self, entry: Entry) -> list[str]:
        work = json.dumps(entry.work._asdict())
        if entry.library == "ours":
            return [sys.executable, "-m", "jaxrl_hpc.bench.worker", work]
        path = [self.paths[entry.library]] if entry.library in self.paths else []
        return [self.python, str(PEER_WORKER), entry.library, work, *path]


@contextlib.contextmanager
def affinity(mode: str) -> Iterator[None]:
    """Processes started inside inherit one core if `mode` is pinned, so that all of their threads have it.

    A process that pins itself is too late: threads that its imports have started keep all cores.
    """
    before = os.sched_getaffinity(0)
    if mode == "pinned":
        os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Worker:
    """A process that runs on request."""

    def __init__(self, entry: Entry, peers: Peers):
        self.entry = entry
        self.ready: dict[str, Any] = {}
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the worker)
        environment = {k: v for k, v in os.environ.items() if k not in THREAD_SETTINGS}
        with affinity(entry.mode):
            self.process = subprocess.Popen(
                peers.command(entry),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                text=True,
                env=environment | NO_CACHE,
            )

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            last = self.errors.read().strip().splitlines()[-1:] or ["no message"]
            raise UserError(f"bench: {self.entry.library} on {self.entry.case} ended: {last[0]}")
        return json.loads(line)

    def ask(self, question: str) -> dict[str, Any]:
        """The answer of `serve` to `seconds S` or `steps N`."""
        assert self.process.stdin is not None
        print(question, file=self.process.stdin, flush=True)
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


@contextlib.contextmanager
def workers_of(entries: Sequence[Entry], peers: Peers, say: Callable[[str], None]) -> Iterator[list[Worker]]:
    """All of them ready; they compile one after another, so that none takes a core from another."""
    workers: list[Worker] = []
    try:
        for entry in entries:
            say(f"compiling {entry.library} ({entry.mode})")
            workers.append(Worker(entry, peers))
            workers[-1].ready = workers[-1].answer()
        yield workers
    finally:
        for worker in workers:
            worker.close()


def take_turns(
    entries: Sequence[Entry],
    seconds: float,
    rounds: int,
    say: Callable[[str], None] = lambda text: None,
    peers: Peers = Peers(),
) -> list[dict[str, Any]]:
    """One result per entry: rates of every round and their medians."""
    with workers_of(entries, peers, say) as workers:
        samples: list[list[dict[str, Any]]] = [[] for _ in entries]
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for worker, kept in zip(workers, samples, strict=True):
                kept.append(worker.ask(f"seconds {seconds}"))
        return [
            describe(worker.entry, kept) | {"compile_seconds": worker.ready["compile_seconds"]}
            for worker, kept in zip(workers, samples, strict=True)
        ]


def learn(
    entry: Entry, steps: int, peers: Peers, say: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Environment steps, updates and the return that a library reaches with them."""
    with workers_of([entry], peers, say) as (worker,):
        say(f"{entry.library} learns")
        return {"library": entry.library, "case": entry.case} | worker.ask(f"steps {steps}")


def describe(entry: Entry, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def median(value: Callable[[dict[str, Any]], float]) -> float:
        return statistics.median(value(sample) for sample in samples)

    most = max(sample["cpu_seconds"] / sample["seconds"] for sample in samples)
    if entry.mode == "pinned" and most > PINNED_CORES:
        raise UserError(
            f"bench: {entry.library} on {entry.case} used {most:.2f} cores, though it was pinned to one"
        )
    return {
        "library": entry.library,
        "case": entry.case,
        "mode": entry.mode,
        "env_steps_per_second": median(lambda s: s["env_steps"] / s["seconds"]),
        "updates_per_second": median(lambda s: s["updates"] / s["seconds"]),
        "cpu_microseconds_per_update": median(lambda s: s["cpu_seconds"] / s["updates"]) * 1e6,
        "cores": median(lambda s: s["cpu_seconds"] / s["seconds"]),
        "steps_per_update": sum(s["env_steps"] for s in samples) / sum(s["updates"] for s in samples),
        "peak_bytes": max(s["peak_bytes"] for s in samples),
        "rounds": [s["env_steps"] / s["seconds"] for s in samples],
        "cpu_rounds": [s["cpu_seconds"] / s["updates"] * 1e6 for s in samples],
    }


def ratio(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float]:
    """How many times their rate ours is: median over rounds, and the extremes."""
    return _spread(a / b for a, b in zip(ours["rounds"], theirs["rounds"], strict=True))


def cpu_ratio(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float]:
    """How many times our CPU time per update theirs is: median over rounds, and the extremes."""
    return _spread(b / a for a, b in zip(ours["cpu_rounds"], theirs["cpu_rounds"], strict=True))


def _spread(values: Iterable[float]) -> dict[str, float]:
    each = list(values)
    return {"median": statistics.median(each), "low": min(each), "high": max(each)}


def machine_facts() -> dict[str, Any]:
    """Facts about the machine for the report."""
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
        "commit": code_version()["commit"],
        "versions": {p: version(p) for p in ("jaxrl-hpc", "jax", "jaxlib", "rejax", "gymnax")},
    }
