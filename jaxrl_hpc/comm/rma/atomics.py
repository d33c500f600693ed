"""Numbers, flags and a lock in a window, changed by atomic operations."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from jaxrl_hpc.comm.rma.window import Window, rounded
from jaxrl_hpc.comm.waiting import Stalled, wait_for


class AtomicCounter:
    """A 64-bit number that all ranks can change, initially zero. Every change returns the previous value."""

    NBYTES = 64  # a cache line of its own

    def __init__(self, window: Window, owner: int, offset: int) -> None:
        self.window, self.owner, self.offset = window, owner, offset

    def add(self, value: int) -> int:
        return self.window.atomic("sum", self.owner, self.offset, value)

    def maximum(self, value: int) -> int:
        return self.window.atomic("max", self.owner, self.offset, value)

    def replace(self, value: int) -> int:
        return self.window.atomic("replace", self.owner, self.offset, value)

    def read(self) -> int:
        return self.window.atomic("read", self.owner, self.offset)


WORD = 32  # bits: 64-bit operations on bits get lost on some MPI libraries


class Bitmap:
    """Flags of one bit each, initially clear. A change returns the previous bit: of several ranks that set a
    bit at the same time, exactly one finds it clear."""

    def __init__(self, window: Window, owner: int, offset: int, count: int) -> None:
        self.window, self.owner, self.offset, self.count = window, owner, offset, count

    @staticmethod
    def nbytes(count: int) -> int:
        return rounded(4 * -(-count // WORD))

    def set(self, bit: int) -> bool:
        """Whether it was set before."""
        offset, mask = self._place(bit)
        return bool(self.window.atomic("or", self.owner, offset, _signed(mask), bits=32) & mask)

    def clear(self, bit: int) -> bool:
        """Whether it was set before."""
        offset, mask = self._place(bit)
        return bool(self.window.atomic("and", self.owner, offset, _signed(~mask), bits=32) & mask)

    def test(self, bit: int) -> bool:
        offset, mask = self._place(bit)
        return bool(self.window.peek(self.owner, offset, bits=32) & mask)

    def all(self) -> np.ndarray:
        """[count] bool; words are read one after the other."""
        words = -(-self.count // WORD)
        values = [self.window.peek(self.owner, self.offset + 4 * i, bits=32) % 2**32 for i in range(words)]
        whole = np.array(values, "<u4").view(np.uint8)
        return np.unpackbits(whole, bitorder="little")[: self.count].astype(bool)

    def _place(self, bit: int) -> tuple[int, int]:
        if not 0 <= bit < self.count:
            raise IndexError(f"bit {bit} of a bitmap of {self.count}")
        return self.offset + 4 * (bit // WORD), 1 << (bit % WORD)


def _signed(word: int) -> int:
    """The same 32 bits as int32."""
    return (word + 2**31) % 2**32 - 2**31


class Mutex:
    """A lock that one rank holds at a time: 0, or the holder's rank + 1, changed by compare-and-swap. Not
    fair. The holder can be read, so that the error after a failed wait names a rank."""

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
