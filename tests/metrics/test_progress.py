"""Progress lines with a clock of our own."""

from __future__ import annotations

import io
import re

import pytest

from jaxrl_hpc.metrics.progress import Compiling, Progress
from jaxrl_hpc.metrics.units import count, duration, size


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_batch_log_is_sparse_and_says_what_matters() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress(100_000, "cartpole", seeds=4, interval=10.0, stream=stream, clock=clock) as progress:
        for step in range(1, 101):
            clock.now += 0.5
            progress.update(1000 * step, {"return": 4.25 * step})
    lines = stream.getvalue().splitlines()
    assert lines[0] == "cartpole: training for 100k steps × 4 seeds"
    assert lines[1] == "cartpole: 20 %  20k/100k steps  8k steps/s × 4 seeds  return 85  40 s left"
    assert lines[-1] == "cartpole: done after 50 s: 100k steps, 8k steps/s  return 425"
    assert len(lines) == 2 + 5


def test_rate_is_recent_and_counts_from_the_resume() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(1_000_000, "run", start=500_000, stream=stream, clock=clock)
    clock.now += 100  # compiling
    progress.update(500_100)
    for step in range(1, 201):
        clock.now += 1
        progress.update(500_100 + 1000 * step)
    assert "1k steps/s" in progress.status()
    assert progress.status().endswith("5 min 00 s left")


def test_failure_is_not_called_done() -> None:
    stream = io.StringIO()
    with pytest.raises(KeyError), Progress(10, "run", stream=stream):
        raise KeyError
    assert "stopped after" in stream.getvalue() and "done" not in stream.getvalue()


def test_terminal_gets_one_live_line() -> None:
    stream, clock = Terminal(), Clock()
    with Progress(1000, "run", stream=stream, clock=clock) as progress:
        clock.now += 1
        progress.update(250, {"return": 3.0})
        progress.say("checkpoint [saved]")
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert "25 %  250/1k steps  250 steps/s" in text.replace("\n", "")
    assert "checkpoint [saved]" in text
    assert text.rstrip().splitlines()[-1] == "run: stopped after 1.0 s: 250 steps, 250 steps/s  return 3"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (count(0), "0"), (count(7), "7"), (count(0.012345), "0.0123"), (count(-95.31), "-95.3"),
        (count(999.96), "1.00k"), (count(1234567), "1.23M"),
        (count(2.5e9), "2.50G"), (count(float("nan")), "–"),
        (size(100), "100 B"), (size(1536), "1.5 KiB"), (size(3 * 2**40), "3.0 TiB"),
        (duration(1.23), "1.2 s"), (duration(59.4), "59 s"), (duration(125), "2 min 05 s"),
        (duration(7620), "2 h 07 min"), (duration(90000), "1 d 01 h"), (duration(float("inf")), "–"),
    ],
)  # fmt: skip
def test_units(text: str, expected: str) -> None:
    assert text == expected


def test_a_terminal_sees_what_is_compiled_and_a_log_one_line() -> None:
    terminal, said = Terminal(), list[str]()
    with Compiling("for one seed", said.append, terminal) as compiling:
        compiling.tell(("step", "evaluate"))
        compiling.tell(("step",))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert "compiling step for one seed" in text and "0:00:0" in text and not said
    with Compiling("for one seed", said.append, io.StringIO()) as compiling:
        compiling.tell(("step",))
    assert said == ["compiling for one seed …"]
