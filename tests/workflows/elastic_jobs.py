"""Elastic runs for tests and studies: a learner, actors as processes, and what must hold in the end."""

from __future__ import annotations

import contextlib
import json
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

ROOT = Path(__file__).resolve().parents[2]
COUNTS = ("joined_actors", "left_actors", "lost_actors", "acknowledged_unrolls", "discarded_unrolls")
DEATHS = ("before", "after", "acting")


@contextlib.contextmanager
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    """Whatever is put into the list is gone at the end."""
    started: list[subprocess.Popen[str]] = []
    try:
        yield started
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.communicate()


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """A Python process whose output is kept."""
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"} | environment,
    )


def learner(config: Path, folder: Path, *more: str, **environment: str) -> subprocess.Popen[str]:
    return start("jaxrl_hpc.cli.main", "train", str(config), "--run-dir", str(folder), *more, **environment)


def actor(folder: Path, unrolls: int = 0, how: str = "stay", **environment: str) -> subprocess.Popen[str]:
    return start("tests.workflows.mortal_actor", str(folder), str(unrolls), how, **environment)


def lives(count: int, leaving: int, longest: int, seed: int) -> list[tuple[int, str]]:
    """How long each of the actors that do not stay lives, and how it ends."""
    draw = random.Random(seed)
    ends = [draw.choice(DEATHS) for _ in range(count)] + ["leave"] * leaving
    draw.shuffle(ends)
    return [(draw.randint(1, longest), how) for how in ends]


def disturb(
    folder: Path,
    fates: list[tuple[int, str]],
    started: list[subprocess.Popen[str]],
    *,
    at_once: int,
    seconds: float,
) -> None:
    """Actors that die or leave, each replaced by the next; in the end as many that stay."""
    waiting = [*fates, *[(0, "stay")] * at_once]
    running: list[tuple[subprocess.Popen[str], str]] = []
    deadline = time.monotonic() + seconds
    while waiting:
        assert time.monotonic() < deadline, f"{len(waiting)} actors were not started within {seconds:.0f} s"
        for process, how in [pair for pair in running if pair[0].poll() is not None]:
            running.remove((process, how))
            output = process.communicate()[0]
            expected = {"leave": 75, "stay": 0}.get(how, -signal.SIGKILL)
            assert process.returncode == expected, f"{how}: {process.returncode}\n{output}"
        while waiting and len(running) < at_once:
            unrolls, how = waiting.pop(0)
            running.append((actor(folder, unrolls, how), how))
            started.append(running[-1][0])
        time.sleep(0.01)  # between looks


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
