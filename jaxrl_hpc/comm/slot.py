"""One value with a version, written by one rank and read by all: parameters.

    begun   int64: the writer has begun its write number `begun`
    done    int64: write number `done` can be read
    buffers depth × (version int64, nbytes): write number s lies in buffer s mod depth

The writer never waits. A reader takes `done` = s, copies buffer s mod depth, then looks at `begun`: the copy
is whole if begun < s + depth, since write s + depth is the first to touch that buffer again and says so
before it does. Otherwise the reader was overtaken and tries again with what is newest then.
"""

from __future__ import annotations

import numpy as np

from jaxrl_hpc.comm.deadline import wait_for
from jaxrl_hpc.comm.windows import Window, rounded

LINE = 64  # bytes


class Slot:
    """Empty at first. Versions are the writer's own numbers and travel with the data."""

    def __init__(self, window: Window, owner: int, offset: int, nbytes: int, depth: int = 2) -> None:
        self.window, self.owner, self.offset = window, owner, offset
        self.item, self.depth = nbytes, depth
        self._writes = 0  # known to the writer
        self._seen = 0  # the newest write that this rank has read
        self.retries = 0  # reads that were overtaken

    @staticmethod
    def nbytes(nbytes: int, depth: int = 2) -> int:
        return 2 * LINE + depth * (LINE + rounded(nbytes))

    def write(self, data: np.ndarray, version: int) -> None:
        """Bytes [nbytes] uint8 replace what was there. Only one rank writes."""
        number = self._writes + 1
        place = self._buffer(number)
        self.window.atomic("replace", self.owner, self.offset, number)
        self.window.write(self.owner, place, np.array([version], np.int64).view(np.uint8))
        self.window.write(self.owner, place + LINE, data)
        self.window.atomic("replace", self.owner, self.offset + LINE, number)
        self._writes = number

    def fresh(self) -> bool:
        """Whether there is something that this rank has not read."""
        return self._newest() > self._seen

    def read(self, out: np.ndarray, seconds: float = 60.0) -> int | None:
        """What is newest into out [nbytes] uint8, and its version; None if this rank has read it already."""
        if not self.fresh():
            return None
        return wait_for(
            lambda: self._attempt(out),
            seconds,
            self.window.rank,
            f"a whole copy of what rank {self.owner} publishes, which is replaced faster than it can be read",
        )

    def _attempt(self, out: np.ndarray) -> int | None:
        number, version = self._newest(), np.empty(8, np.uint8)
        place = self._buffer(number)
        self.window.read(self.owner, place, version)
        self.window.read(self.owner, place + LINE, out)
        begun = self.window.peek(self.owner, self.offset)
        if begun < number + self.depth:
            self._seen = number
            return int(version.view(np.int64)[0])
        self.retries += 1
        return None

    def _newest(self) -> int:
        return self.window.peek(self.owner, self.offset + LINE)

    def _buffer(self, number: int) -> int:
        return self.offset + 2 * LINE + (number % self.depth) * (LINE + rounded(self.item))
