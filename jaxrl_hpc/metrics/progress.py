"""Progress of a run: one live line in a terminal, an occasional line in a batch log.

    with Progress(total=100_000, name="cartpole_dqn", start=env_steps_at_resume) as progress:
        progress.update(env_steps, {"return": 431.2})
        progress.say("checkpoint saved")

Steps are those of one seed; `seeds` multiplies the rate. The rate is that of the last minute, so that
compilation distorts the estimate of the time left only briefly.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as LiveProgress

from jaxrl_hpc.metrics.units import count, duration

RATE_WINDOW = 60.0  # seconds


class Compiling:
    """While programs are compiled: a live line with seconds and their names; elsewhere one line by `say`."""

    def __init__(self, what: str, say: Callable[[str], None], stream: TextIO | None = None) -> None:
        self._what, self._say = what, say
        self._stream = stream if stream is not None else sys.stderr
        self._live: LiveProgress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Compiling:
        if self._stream.isatty():
            columns = [SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()]
            # gone when it is done: how long it took is in the summary
            self._live = LiveProgress(*columns, console=Console(file=self._stream), transient=True)
            self._task = self._live.add_task(f"compiling {self._what}", total=None)
            self._live.start()
        else:
            self._say(f"compiling {self._what} …")
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def tell(self, programs: Sequence[str]) -> None:
        """Names of the programs that are not done yet."""
        if self._live is not None and self._task is not None:
            self._live.update(self._task, description=f"compiling {', '.join(programs)} {self._what}")


class Progress:
    """A context manager; output goes to `stream`, by default standard error."""

    def __init__(
        self,
        total: int,
        name: str,
        start: int = 0,
        seeds: int = 1,
        unit: str = "seeds",
        interval: float = 10.0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._name, self._start, self._seeds = total, name, start, seeds
        self._unit = unit  # what the seeds are called
        self._interval, self._clock = interval, clock
        self._stream = stream if stream is not None else sys.stderr
        self._began = clock()
        self._history: deque[tuple[float, int]] = deque([(self._began, start)])
        self._steps, self._values = start, dict[str, float]()
        self._last_line = self._began
        self._live: LiveProgress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Progress:
        if self._stream.isatty():
            console = Console(file=self._stream)
            columns = [
                TextColumn("[bold]{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[status]}"),
            ]
            self._live = LiveProgress(*columns, console=console)
            self._task = self._live.add_task(
                self._name, total=self._total, completed=self._start, status="compiling"
            )
            self._live.start()
        else:
            begin = f"continuing from step {count(self._start)} to" if self._start else "training for"
            self.say(f"{begin} {count(self._total)} steps" + self._seeds_text())
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        elapsed = duration(self._clock() - self._began)
        how = "done" if kind is None and self._steps >= self._total else "stopped"
        rate = self._rate(whole=True)
        self.say(
            f"{how} after {elapsed}: {count(self._steps)} steps, {count(rate)} steps/s{self._values_text()}"
        )

    def update(self, env_steps: int, values: Mapping[str, float] | None = None) -> None:
        """Steps of one seed so far, and what to show beside them (the last values stay)."""
        now = self._clock()
        self._steps = env_steps
        self._values |= dict(values or {})
        self._history.append((now, env_steps))
        while len(self._history) > 2 and self._history[1][0] < now - RATE_WINDOW:
            self._history.popleft()
        if self._live is not None and self._task is not None:
            self._live.update(self._task, completed=env_steps, status=self.status())
        elif now - self._last_line >= self._interval:
            self._last_line = now
            self.say(self.status())

    def say(self, text: str) -> None:
        """A line of its own."""
        if self._live is not None:
            self._live.console.print(f"{self._name}: {text}", markup=False, highlight=False)
        else:
            print(f"{self._name}: {text}", file=self._stream, flush=True)

    def status(self) -> str:
        share = 100 * self._steps / max(1, self._total)
        per_seed = self._rate() / self._seeds
        left = (self._total - self._steps) / per_seed if per_seed > 0 else float("inf")
        parts = [f"{share:.0f} %", f"{count(self._steps)}/{count(self._total)} steps"]
        parts += [f"{count(self._rate())} steps/s{self._seeds_text()}"]
        return "  ".join(parts) + f"{self._values_text()}  {duration(max(0.0, left))} left"

    def _rate(self, whole: bool = False) -> float:
        """Steps per second of all seeds."""
        then, steps = (self._began, self._start) if whole else self._history[0]
        now = self._clock() if whole else self._history[-1][0]
        return self._seeds * (self._steps - steps) / (now - then) if now > then else 0.0

    def _seeds_text(self) -> str:
        return f" × {self._seeds} {self._unit}" if self._seeds > 1 else ""

    def _values_text(self) -> str:
        return "".join(f"  {name} {count(value)}" for name, value in self._values.items())
