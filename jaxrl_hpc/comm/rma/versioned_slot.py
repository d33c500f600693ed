"""One value with a version, written by one rank and read by all: parameters.

    begun   int64: the writer has begun its write number `begun`
    done    int64: write number `done` can be read
    asking  int64: readers that were overtaken repeatedly and ask the writer to let them finish
    buffers depth × (version int64, nbytes): write number s lies in buffer s mod depth

The writer never waits. A reader takes `done` = s, copies buffer s mod depth, then looks at `begun`: the copy
is whole if begun < s + depth, since write s + depth is the first to reuse that buffer and is announced before
it starts. Otherwise the reader was overtaken and tries again with the newest value.

A reader that is slower than the writer would retry forever. After a few attempts it asks for time: the writer
then holds the newest value back until the reader has its copy, and publishes it later (`settle`). A dead or
stalled reader does not block the writer for long: after a timeout the writer continues, and doubles the
timeout for the next time.
"""

from __future__ import annotations

import time

import numpy as np

from jaxrl_hpc.comm.rma.window import Window, rounded
from jaxrl_hpc.comm.waiting import wait_for

LINE = 64  # bytes
ATTEMPTS = 2  # that may be overtaken before a reader asks for time
HOLD_SECONDS, LONGEST_HOLD = 1.0, 60.0  # that a writer gives readers: at first, at most


class VersionedSlot:
    """Initially empty. Versions are the writer's own numbers and are stored with the data."""

    def __init__(self, window: Window, owner: int, offset: int, nbytes: int, depth: int = 2) -> None:
        self.window, self.owner, self.offset = window, owner, offset
        self.item, self.depth = nbytes, depth
        self._header = np.zeros(LINE, np.uint8)
        # the writer's
        self._writes = 0
        self._aside: tuple[np.ndarray, int] | None = None  # the newest, not published yet
        self._held_since: float | None = None
        self._hold = HOLD_SECONDS
        # a reader's
        self._seen = 0  # the newest write that this rank has read
        self.retries = 0  # reads that were overtaken

    @staticmethod
    def nbytes(nbytes: int, depth: int = 2) -> int:
        return 3 * LINE + depth * (LINE + rounded(nbytes))

    # -- the writer ----------------------------------------------------------

    def write(self, data: np.ndarray, version: int) -> None:
        """Replace the value by bytes [nbytes] uint8. Only one rank writes. `data` must not change: while
        readers ask for time it is held back, until a later write replaces it."""
        self._aside = (data, version)
        self.settle()

    def settle(self) -> bool:
        """Publish a value that was held back, if possible; whether none is left. Called periodically."""
        if self._aside is None:
            return True
        if self._held():
            return False
        (data, version), self._aside = self._aside, None
        number = self._writes + 1
        self._header.view(np.int64)[0] = version
        self.window.store(self.owner, self.offset, number)
        self.window.write(self.owner, self._buffer(number), self._header, data)
        self.window.store(self.owner, self.offset + LINE, number)
        self._writes = number
        return True

    def _held(self) -> bool:
        """Whether readers ask for time, and the timeout has not passed."""
        if self.window.peek(self.owner, self.offset + 2 * LINE) <= 0:
            self._held_since, self._hold = None, HOLD_SECONDS
            return False
        now = time.monotonic()
        if self._held_since is None:
            self._held_since = now
        if now - self._held_since < self._hold:
            return True
        self._held_since, self._hold = None, min(2 * self._hold, LONGEST_HOLD)
        return False

    # -- readers -------------------------------------------------------------

    def fresh(self) -> bool:
        """Whether there is a value that this rank has not read."""
        return self._newest() > self._seen

    def read(self, out: np.ndarray, seconds: float = 60.0) -> int | None:
        """Copy the newest value to out [nbytes] uint8; its version, or None if already read by this rank."""
        if not self.fresh():
            return None
        for _ in range(ATTEMPTS):
            version = self._attempt(out)
            if version is not None:
                return version
        self._ask(1)
        try:
            return wait_for(
                lambda: self._attempt(out),
                seconds,
                self.window.rank,
                f"a whole copy of what rank {self.owner} publishes, which is replaced faster than it is read",
            )
        finally:
            self._ask(-1)

    def _ask(self, change: int) -> None:
        self.window.atomic("sum", self.owner, self.offset + 2 * LINE, change)

    def _attempt(self, out: np.ndarray) -> int | None:
        number, version = self._newest(), np.empty(LINE, np.uint8)
        self.window.read(self.owner, self._buffer(number), version, out)
        begun = self.window.peek(self.owner, self.offset)
        if begun < number + self.depth:
            self._seen = number
            return int(version.view(np.int64)[0])
        self.retries += 1
        return None

    def _newest(self) -> int:
        return self.window.peek(self.owner, self.offset + LINE)

    def _buffer(self, number: int) -> int:
        return self.offset + 3 * LINE + (number % self.depth) * (LINE + rounded(self.item))
