"""Waiting for other ranks: polling with backoff, which leaves cores to working ranks, and a deadline."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

EAGER_POLLS = 200  # that only yield the core in between
NAP_SECONDS = 2e-4  # between later polls: with more ranks than cores, waiting must not slow down work


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
        now = time.perf_counter()
        if self._polls == 0:
            self._since = now
        self._polls += 1
        if self._polls < EAGER_POLLS:
            os.sched_yield()
        else:
            time.sleep(NAP_SECONDS)

    def reset(self) -> None:
        if self._polls:
            self.seconds += time.perf_counter() - self._since
            self._polls = 0


T = TypeVar("T")


class Stalled(RuntimeError):
    """A deadline has passed."""


def wait_for(poll: Callable[[], T | None], seconds: float, rank: int, what: str) -> T:
    """What `poll` returns once it is not None; Stalled after so many seconds."""
    start, backoff = time.monotonic(), Backoff()
    while (found := poll()) is None:
        waited = time.monotonic() - start
        if waited > seconds:
            raise Stalled(f"rank {rank} waited {waited:.1f} s for {what}")
        backoff.pause()
    return found
