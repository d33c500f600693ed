"""Flags in a window, one bit each, such as which actors are active.

A change returns how the bit was before: of several ranks that set a bit at the same time exactly one is
told that it was clear.
"""

from __future__ import annotations

import numpy as np

from jaxrl_hpc.comm.windows import Window, rounded

WORD = 32  # bits: 64-bit operations on bits get lost on some MPI libraries


class Bitmap:
    """Clear at first."""

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
