"""A number in a window that all ranks change in one step each."""

from __future__ import annotations

from jaxrl_hpc.comm.windows import Window


class Counter:
    """64 bits, zero at first. Every change returns what was there before it."""

    NBYTES = 64  # a cache line of its own

    def __init__(self, window: Window, owner: int, offset: int) -> None:
        self.window, self.owner, self.offset = window, owner, offset

    def add(self, value: int) -> int:
        return self.window.atomic("sum", self.owner, self.offset, value)

    def minimum(self, value: int) -> int:
        """It becomes the smaller of the two."""
        return self.window.atomic("min", self.owner, self.offset, value)

    def maximum(self, value: int) -> int:
        return self.window.atomic("max", self.owner, self.offset, value)

    def replace(self, value: int) -> int:
        return self.window.atomic("replace", self.owner, self.offset, value)

    def read(self) -> int:
        return self.window.atomic("read", self.owner, self.offset)
