"""Waiting for other ranks: polling with backoff, which frees cores for working ranks, and a deadline.

The polling rate is chosen once per job (`choose`): where ranks outnumber cores, polls become rare quickly,
and collectives inside programs poll too (polling.py) instead of spinning in MPI.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeVar

Waiting = Literal["spin", "sleep"]


class Pace(NamedTuple):
    """How a process polls: at first it only yields the core between polls, later it sleeps."""

    eager_polls: int
    eager_seconds: float
    shortest_nap: float
    usual_nap: float  # up to here naps are `part` of the time waited so far
    longest_nap: float  # beyond it and up to here they are `late_part` of it
    part: float
    late_part: float

    def nap(self, waited: float) -> float:
        usual = min(max(waited * self.part, self.shortest_nap), self.usual_nap)
        return min(max(usual, waited * self.late_part), self.longest_nap)


PACES: dict[Waiting, Pace] = {
    "spin": Pace(200, float("inf"), 2e-4, 2e-4, 2e-4, 0.0, 0.0),
    "sleep": Pace(200, 5e-5, 5e-5, 1e-3, 1e-2, 1 / 8, 1 / 16),
}


class WaitingChoice(NamedTuple):
    """How the ranks of a job wait; the same on all of them."""

    mode: Waiting = "spin"
    ranks_per_core: float = 1.0
    programs_poll: bool = False  # collectives inside programs release the core too


_choice = WaitingChoice()


def choose(
    wanted: Literal["spin", "sleep", "auto"], ranks_per_core: float, programs_can_poll: bool
) -> WaitingChoice:
    """Set how this process waits; `auto` depends on whether ranks outnumber cores."""
    global _choice
    mode: Waiting = ("sleep" if ranks_per_core > 1 else "spin") if wanted == "auto" else wanted
    _choice = WaitingChoice(mode, ranks_per_core, mode == "sleep" and programs_can_poll)
    return _choice


def chosen() -> WaitingChoice:
    return _choice


class Backoff:
    """Backoff between unsuccessful polls: `pause()` after each, `reset()` once one has succeeded."""

    def __init__(self) -> None:
        self.seconds = 0.0  # spent waiting since the beginning
        self._polls = 0
        self._since = 0.0

    @property
    def waiting(self) -> bool:
        """Whether the last poll was unsuccessful."""
        return self._polls > 0

    def pause(self) -> None:
        now, pace = time.perf_counter(), PACES[_choice.mode]
        if self._polls == 0:
            self._since = now
        self._polls += 1
        waited = now - self._since
        if self._polls < pace.eager_polls and waited < pace.eager_seconds:
            os.sched_yield()
        else:
            time.sleep(pace.nap(waited))

    def reset(self) -> None:
        if self._polls:
            self.seconds += time.perf_counter() - self._since
            self._polls = 0


T = TypeVar("T")


class Stalled(RuntimeError):
    """A deadline has passed."""


def wait_for(poll: Callable[[], T | None], seconds: float, rank: int, what: str) -> T:
    """The first result of `poll` that is not None; Stalled after the given seconds."""
    start, backoff = time.monotonic(), Backoff()
    while (found := poll()) is None:
        waited = time.monotonic() - start
        if waited > seconds:
            raise Stalled(f"rank {rank} waited {waited:.1f} s for {what}")
        backoff.pause()
    return found
