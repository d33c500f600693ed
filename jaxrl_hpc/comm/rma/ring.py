"""A bounded queue of byte strings in a window: one producer, any number of consumers, no locks.

    tail    int32: items put in so far, modulo a multiple of the capacity; stored by the producer
    head    int32: items gone so far, taken or dropped; claimed by compare-and-swap, or stored
    refused int64: items that never came in; stored by the producer
    slots   capacity × (number int64, length int64, nbytes): item i lies in slot i mod capacity

A consumer reads head = h, copies slot h mod capacity, then claims it by compare-and-swap h → h + 1. The
producer writes that slot again only when head > h, so a claim that succeeds proves that the copy is whole,
and that no other consumer has this item. A claim that fails is a collision: the copy is discarded.

A single consumer, with a producer that never drops, is the only writer of head: it stores head without
reading it, which costs far less than a claim. Likewise, a producer reads head only when the ring was full at
its last read, and a single consumer reads tail only when it has taken all items up to the last tail read.

When the ring is full the rule decides: `block` waits for space, `reject` refuses the new item, `drop_oldest`
claims the oldest as a consumer would, and discards it. Losses are counted exactly, in `counts` at the
producer and, since items carry consecutive numbers, as gaps at the consumers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from jaxrl_hpc.comm.buffers import aligned
from jaxrl_hpc.comm.rma.window import Window, rounded
from jaxrl_hpc.comm.waiting import wait_for

Rule = Literal["block", "reject", "drop_oldest"]
LINE = 64  # bytes


class Item(NamedTuple):
    """An item taken from the ring."""

    number: int  # of the producer's items, counted from 0
    data: np.ndarray  # [length] uint8, aligned, memory of its own


class RingQueue:
    """Made alike on all ranks; the producer may be any of them, and the memory any rank's."""

    def __init__(
        self,
        window: Window,
        owner: int,
        offset: int,
        capacity: int,
        nbytes: int,
        rule: Rule = "block",
        alone: bool = False,  # only one rank ever takes
    ) -> None:
        if capacity < 1:
            raise ValueError(f"a ring of {capacity} items: capacity must be at least 1")
        self.window, self.owner, self.offset = window, owner, offset
        self.capacity, self.item, self.rule = capacity, nbytes, rule
        self.counts = {"pushed": 0, "rejected": 0, "dropped": 0, "taken": 0, "collisions": 0}
        self._wrap = 2**30 // capacity * capacity  # so that counters fit and slots stay in order
        self.seen = 0  # items that were left when this rank last looked
        self._stores = alone and rule != "drop_oldest"  # head has one writer
        self._header = np.zeros(LINE, np.uint8)
        # the producer's
        self._tail = 0
        self._freed = 0  # head when it last looked
        self._number = 0
        # a consumer's
        self._next = 0  # head, if it is alone
        self._come = 0  # tail when it last looked

    @staticmethod
    def nbytes(capacity: int, nbytes: int) -> int:
        return 3 * LINE + capacity * (LINE + rounded(nbytes))

    def push(self, data: np.ndarray, seconds: float = 60.0, look: Callable[[], bool] = lambda: False) -> bool:
        """Put bytes [length] uint8 in -> whether that succeeded. `look` may end a wait for space."""
        if data.nbytes > self.item:
            raise ValueError(f"an item of {data.nbytes} bytes does not fit into {self.item}")
        number, self._number = self._number, self._number + 1
        if not self._make_space(seconds, look):
            self.counts["rejected"] += 1
            self.window.store(self.owner, self.offset + 2 * LINE, self.counts["rejected"])
            return False
        self._header.view(np.int64)[:2] = number, data.nbytes
        self.window.write(self.owner, self._place(self._tail), self._header, data)
        self._tail = (self._tail + 1) % self._wrap
        self.window.store(self.owner, self.offset, self._tail, bits=32)
        self.counts["pushed"] += 1
        return True

    def _make_space(self, seconds: float, look: Callable[[], bool]) -> bool:
        if self.room():
            return True
        if self.rule == "reject":
            return False
        if self.rule == "drop_oldest":
            head = (self._tail - self.capacity) % self._wrap
            claimed = self._claim(head)  # otherwise a consumer was faster, which also makes space
            self.counts["dropped"] += claimed
            self._freed = (head + 1) % self._wrap
            return True

        def space() -> bool | None:
            if self.room():
                return True
            return False if look() else None

        where = (
            f"space in the ring of rank {self.owner}, full with {self.capacity} items that no consumer takes"
        )
        return wait_for(space, seconds, self.window.rank, where)

    def gone(self) -> int:
        """Items that cannot be taken any more: already taken, dropped or refused. At most 2^30 of a job."""
        return self._head() + self.window.peek(self.owner, self.offset + 2 * LINE)

    def room(self) -> bool:
        """Whether there is space for an item. For the producer, which alone uses that space."""
        known = (self._tail - self._freed) % self._wrap < self.capacity
        return known or self.depth() < self.capacity

    def depth(self) -> int:
        """Items in the ring, as the producer sees it."""
        self._freed = self._head()
        return (self._tail - self._freed) % self._wrap

    def waiting(self) -> int:
        """Items in the ring, as anyone sees it."""
        head = self._head()  # read before the tail: it can only be behind
        tail = self.window.peek(self.owner, self.offset, bits=32)
        return min((tail - head) % self._wrap, self.capacity)

    def take(self) -> Item | None:
        """The oldest item; None if the ring is empty, or another consumer was faster."""
        head = self._next if self._stores else self._head()
        if not self._stores or head == self._come:
            self._come = self.window.peek(self.owner, self.offset, bits=32)
        left = (self._come - head) % self._wrap
        self.seen = max(left - 1, 0)
        if left == 0:
            return None
        slot = aligned(LINE + self.item)
        self.window.read(self.owner, self._place(head), slot)
        if not self._claim(head):
            self.counts["collisions"] += 1
            return None
        number, length = slot[:16].view(np.int64)
        self.counts["taken"] += 1
        return Item(int(number), slot[LINE : LINE + int(length)])

    def _claim(self, head: int) -> bool:
        there, following = self.offset + LINE, (head + 1) % self._wrap
        if not self._stores:
            return self.window.compare_and_swap(self.owner, there, head, following)
        self._next = following
        self.window.store(self.owner, there, following, bits=32)
        return True

    def _head(self) -> int:
        return self.window.peek(self.owner, self.offset + LINE, bits=32)

    def _place(self, count: int) -> int:
        return self.offset + 3 * LINE + (count % self.capacity) * (LINE + rounded(self.item))
