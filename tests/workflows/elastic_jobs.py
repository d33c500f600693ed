"""Elastic runs for tests and studies: a learner, actors as processes, and what must hold in the end."""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl_hpc.checkpoint.checkpointer import Checkpointer
from jaxrl_hpc.metrics.parquet import read_metrics
from jaxrl_hpc.workflows.actor_learner.arrival_log import file_of
from tests.workflows import mortal_actor

ROOT = Path(__file__).resolve().parents[2]
COUNTS = ("joined_actors", "left_actors", "lost_actors", "acknowledged_unrolls", "discarded_unrolls")
DEATHS = ("before", "after", "acting")


class ActorProcess:
    """An actor that dies, leaves or stays (mortal_actor.py), in a process of its own.

    A server that has imported everything forks them, so that most of a start is not repeated.
    """

    _forks = multiprocessing.get_context("forkserver")
    _forks.set_forkserver_preload(["tests.workflows.mortal_actor"])
    _number = itertools.count()

    def __init__(self, folder: Path, unrolls: int = 0, how: str = "stay") -> None:
        self.how = how
        self.output = folder.with_name(f"{folder.name}-actor-{next(self._number)}.log")
        arguments = (str(folder), unrolls, how, str(self.output))
        self._process = self._forks.Process(target=mortal_actor.live, args=arguments, daemon=True)
        self._process.start()

    def poll(self) -> int | None:
        return self._process.exitcode

    @property
    def text(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    def finish(self, seconds: float) -> int | None:
        """The exit code, None if it goes on for longer."""
        self._process.join(seconds)
        return self._process.exitcode

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()


class LearnerProcess:
    """jaxrl-hpc train."""

    def __init__(self, config: Path, folder: Path, *more: str, **environment: str) -> None:
        train = ["-m", "jaxrl_hpc.cli.main", "train", str(config), "--run-dir", str(folder), *more]
        self._process = subprocess.Popen(
            [sys.executable, *train],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONUNBUFFERED": "1"} | environment,
        )
        self.text = ""
        self.signal = self._process.send_signal

    def poll(self) -> int | None:
        return self._process.poll()

    def finish(self, seconds: float) -> int:
        """The exit code; `text` is its whole output then."""
        self.text = self._process.communicate(timeout=seconds)[0]
        return self._process.returncode

    def end(self) -> None:
        self._process.kill()
        if self._process.stdout and not self._process.stdout.closed:
            self._process.communicate()


Process = ActorProcess | LearnerProcess


@contextlib.contextmanager
def processes() -> Iterator[list[Process]]:
    """Whatever is put into the list is gone at the end."""
    started: list[Process] = []
    try:
        yield started
    finally:
        for process in started:
            process.end()


def lives(count: int, leaving: int, longest: int, seed: int) -> list[tuple[int, str]]:
    """How long each of the actors that do not stay lives, and how it ends."""
    draw = random.Random(seed)
    ends = [draw.choice(DEATHS) for _ in range(count)] + ["leave"] * leaving
    draw.shuffle(ends)
    return [(draw.randint(1, longest), how) for how in ends]


def disturb(
    folder: Path, fates: list[tuple[int, str]], started: list[Process], *, at_once: int, seconds: float
) -> list[ActorProcess]:
    """Actors that die or leave, each replaced by the next; then as many that stay, which are given.

    Those that stay could finish the run alone: they start when the fates of all others are fulfilled.
    """
    waiting = [*fates, *[(0, "stay")] * at_once]
    running: list[ActorProcess] = []
    learner, deadline = started[0], time.monotonic() + seconds
    while waiting:
        assert learner.poll() is None or all(how == "stay" for _, how in waiting), (
            "the learner ended too soon"
        )
        assert time.monotonic() < deadline, f"{len(waiting)} actors were not started within {seconds:.0f} s"
        for process in [process for process in running if process.poll() is not None]:
            running.remove(process)
            expected = {"leave": 75, "stay": 0}.get(process.how, -signal.SIGKILL)
            assert process.poll() == expected, f"{process.how}: {process.poll()}\n{process.text}"
        while waiting and len(running) < at_once:
            if waiting[0][1] == "stay" and any(process.how != "stay" for process in running):
                break
            running.append(ActorProcess(folder, *waiting.pop(0)))
            started.append(running[-1])
        time.sleep(0.01)  # between looks
    return [process for process in running if process.how == "stay"]


def entries(folder: Path) -> list[list[int]]:
    """The recorded order of arrivals."""
    lines = file_of(folder, 0).read_text().splitlines()[1:]
    return [[int(number) for number in line.split(",")] for line in lines]


def saved(folder: Path) -> dict[str, Any]:
    """What the newest checkpoint has of actors."""
    _, leaves, numbers = Checkpointer(folder / "checkpoints" / "actors-0000").load()
    return {name.strip("[']"): leaf for name, leaf in leaves.items()} | numbers


def accounts(folder: Path, steps_per_unroll: int) -> dict[str, Any]:
    """Checks a finished run that recorded its schedule -> its summary."""
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["joined_actors"] == summary["left_actors"] + summary["lost_actors"]
    unrolls = {name: summary[f"{name}_unrolls"] for name in ("acknowledged", "learned", "dropped", "pending")}
    assert unrolls["acknowledged"] == unrolls["learned"] + unrolls["dropped"] + unrolls["pending"], unrolls
    assert unrolls["learned"] * steps_per_unroll == summary["env_steps"], "the budget was learned from, once"
    taken = entries(folder)
    assert len(taken) == unrolls["learned"] + unrolls["dropped"]
    assert sum(used for *_, used in taken) == unrolls["learned"]
    streams = defaultdict(list)
    for number, sequence, *_ in taken:
        streams[number].append(sequence)
    kept = saved(folder)
    assert len(kept["pending"]) == unrolls["pending"]
    assert sum(map(len, streams.values())) + unrolls["pending"] == unrolls["acknowledged"]
    for number, sequences in streams.items():
        assert sequences == list(range(len(sequences))), (
            f"stream {number}: once each, in order, none left out"
        )
    rows = [row for row in read_metrics(folder).to_pylist() if row["kind"] == "train"]
    for name in COUNTS:  # what happened after the last row is in the summary only
        assert sum(row[name] for row in rows) <= summary[name]
    assert sum(row["acknowledged_unrolls"] for row in rows) == unrolls["acknowledged"]
    assert np.isfinite(summary["eval_return_score"])
    return summary
