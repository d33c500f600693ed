"""A window without MPI, for threads that take turns as a seed says: any interleaving, and the same again.

Every operation begins with a change of turns, and reads and writes of several bytes have some in the middle,
so that a reader can meet half a write. What the structures rest on is kept: atomic operations are, and a word
that is stored has one writer, which is checked.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import numpy as np


class Turns:
    """Exactly one of the threads runs; who is next is drawn."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._gates: dict[int, threading.Semaphore] = {}
        self._mine = threading.local()
        self.errors: list[BaseException] = []

    def run(self, *bodies: Callable[[], None]) -> None:
        """All bodies to their ends; the first error of any of them."""
        self._gates = {number: threading.Semaphore(0) for number in range(len(bodies))}

        def thread(number: int, body: Callable[[], None]) -> None:
            self._mine.number = number
            self._gates[number].acquire()
            try:
                body()
            except BaseException as error:
                self.errors.append(error)
            gate = self._gates.pop(number)
            assert gate is not None
            if self._gates:
                self._next().release()

        threads = [
            threading.Thread(target=thread, args=(number, body), daemon=True)
            for number, body in enumerate(bodies)
        ]
        for one in threads:
            one.start()
        self._next().release()
        for one in threads:
            one.join()
        if self.errors:
            raise self.errors[0]

    def _next(self) -> threading.Semaphore:
        return self._gates[self._random.choice(sorted(self._gates))]

    def change(self) -> None:
        own, gate = self._gates[self._mine.number], self._next()
        if gate is not own:
            gate.release()
            own.acquire()


class FakeWindow:
    """As one thread sees it; `memory` is the same for all, and so is who stores to which of its words."""

    def __init__(
        self, turns: Turns, memory: list[np.ndarray], rank: int, writers: dict[tuple[int, int], int]
    ) -> None:
        self.turns, self._memory, self.rank, self._writers = turns, memory, rank, writers

    def write(self, rank: int, offset: int, *parts: np.ndarray) -> None:
        data = np.concatenate(parts)
        for place in np.array_split(np.arange(data.size), 3):
            self.turns.change()
            self._memory[rank][offset + place] = data[place]

    def read(self, rank: int, offset: int, *outs: np.ndarray) -> None:
        data = np.empty(sum(out.size for out in outs), np.uint8)
        for place in np.array_split(np.arange(data.size), 3):
            self.turns.change()
            data[place] = self._memory[rank][offset + place]
        for out, part in zip(outs, np.split(data, np.cumsum([out.size for out in outs])[:-1]), strict=True):
            out[:] = part

    def store(self, rank: int, offset: int, value: int, bits: int = 64) -> None:
        """Only one thread may ever store to a place, and nobody may change it in another way."""
        first = self._writers.setdefault((rank, offset), self.rank)
        assert first == self.rank, f"rank {self.rank} stores to a word of rank {first}"
        self._change("replace", rank, offset, value, bits)

    def atomic(self, op: str, rank: int, offset: int, value: int = 0, bits: int = 64) -> int:
        assert op == "read" or (rank, offset) not in self._writers, (
            "atomic operations on a word that is stored"
        )
        return self._change(op, rank, offset, value, bits)

    def _change(self, op: str, rank: int, offset: int, value: int, bits: int) -> int:
        self.turns.change()
        word = self._memory[rank][offset : offset + bits // 8].view(np.int64 if bits == 64 else np.int32)
        before = int(word[0])
        after = {
            "sum": before + value, "min": min(before, value), "max": max(before, value), "replace": value,
            "read": before, "or": before | value, "and": before & value,
        }[op]  # fmt: skip
        word[0] = after
        return before

    def peek(self, rank: int, offset: int, bits: int = 64) -> int:
        return self.atomic("read", rank, offset, bits=bits)

    def compare_and_swap(self, rank: int, offset: int, expected: int, value: int) -> bool:
        assert (rank, offset) not in self._writers, "a claim of a word that is stored"
        self.turns.change()
        word = self._memory[rank][offset : offset + 4].view(np.int32)
        if word[0] != expected:
            return False
        word[0] = value
        return True


def windows(turns: Turns, ranks: int, nbytes: int) -> list[FakeWindow]:
    memory = [np.zeros(nbytes, np.uint8) for _ in range(ranks)]
    writers: dict[tuple[int, int], int] = {}
    return [FakeWindow(turns, memory, rank, writers) for rank in range(ranks)]
