"""A lock in a window: one rank at a time. Who holds it can be read, so that a wait in vain names a rank."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from jaxrl_hpc.comm.deadline import Stalled, wait_for
from jaxrl_hpc.comm.windows import Window


class Mutex:
    """A 32-bit word: 0, or the holder's rank + 1, changed by compare-and-swap. Not fair."""

    NBYTES = 64  # a cache line of its own

    def __init__(self, window: Window, owner: int, offset: int, seconds: float) -> None:
        self.window, self.owner, self.offset, self.seconds = window, owner, offset, seconds
        self.contended = 0  # times that it was not free at once

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        mine = self.window.rank + 1
        if not self._swap(0, mine):
            self.contended += 1
            try:
                wait_for(lambda: self._swap(0, mine) or None, self.seconds, self.window.rank, "the lock")
            except Stalled as error:
                raise Stalled(f"{error}, which rank {self.holder()} holds") from None
        try:
            yield
        finally:
            self._swap(mine, 0)

    def holder(self) -> int | None:
        """A rank; None if it is free."""
        word = self.window.atomic("read", self.owner, self.offset, bits=32)
        return word - 1 if word else None

    def _swap(self, expected: int, value: int) -> bool:
        return self.window.compare_and_swap(self.owner, self.offset, expected, value)
