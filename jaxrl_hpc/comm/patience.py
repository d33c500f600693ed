"""Waiting for messages: by looking for them, without taking the core from those who have work to do."""

from __future__ import annotations

import os
import time

EAGER_LOOKS = 200  # that only let others run in between
NAP_SECONDS = 2e-4  # between later looks: with more ranks than cores, those who wait must not be in the way


class Patience:
    """Counts looks in vain. `pause()` after each; `again()` when something was found."""

    def __init__(self) -> None:
        self.seconds = 0.0  # spent waiting since the beginning
        self._looks = 0
        self._since = 0.0

    @property
    def waiting(self) -> bool:
        """Whether the last look was in vain."""
        return self._looks > 0

    def pause(self) -> None:
        now = time.perf_counter()
        if self._looks == 0:
            self._since = now
        self._looks += 1
        if self._looks < EAGER_LOOKS:
            os.sched_yield()
        else:
            time.sleep(NAP_SECONDS)

    def again(self) -> None:
        if self._looks:
            self.seconds += time.perf_counter() - self._since
            self._looks = 0
