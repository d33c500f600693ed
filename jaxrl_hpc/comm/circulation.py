"""Everything that a worker makes, to all other workers, by the number of the exchange that it belongs to.

A worker that was exchange n takes in what belongs to exchanges before n, all of it and in this order, so that
what it has follows from the order of exchanges alone. It waits for messages that are on their way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxrl_hpc.comm.packing import aligned
from jaxrl_hpc.comm.patience import Patience
from jaxrl_hpc.comm.watchdog import Watchdog

LINE = 64  # bytes


class Circulation:
    """One worker's end. Made by all of them together."""

    def __init__(self, comm: Any, nbytes: int, watchdog: Watchdog) -> None:
        from mpi4py import MPI

        self._any, self._status = MPI.ANY_SOURCE, MPI.Status()
        self.comm, self.nbytes, self.watchdog = comm.Clone(), nbytes, watchdog
        self._sent: list[tuple[Any, np.ndarray]] = []  # requests and what they still need
        self._here: dict[int, np.ndarray] = {}
        self._next = 0  # the first exchange that has not been taken in
        self.patience = Patience()

    def begin(self, number: int) -> None:
        """What belongs to exchanges before this one is known to all."""
        self._next = number

    def give(self, number: int, data: np.ndarray) -> None:
        """Bytes [nbytes] uint8 of the exchange that this worker was."""
        letter = aligned(LINE + self.nbytes)
        letter[:LINE].view(np.int64)[0] = number
        letter[LINE:] = data
        self._sent = [(request, kept) for request, kept in self._sent if not request.Test()]
        for rank in range(self.comm.Get_size()):
            if rank != self.comm.Get_rank():
                self._sent.append((self.comm.Isend(letter, dest=rank), letter))
        self._here[number] = np.zeros(0, np.uint8)  # one's own

    def take(self, before: int) -> list[np.ndarray]:
        """What belongs to exchanges before this one and was not taken, in order; one's own left out."""
        found = []
        while self._next < before:
            while self._next not in self._here:
                self._receive()
            data = self._here.pop(self._next)
            if data.size:
                found.append(data)
            self._next += 1
        return found

    def _receive(self) -> None:
        if not self.comm.Iprobe(source=self._any, status=self._status):
            if not self.patience.waiting:
                self.watchdog.at(f"waiting for the unrolls of exchange {self._next}", self._next)
            self.patience.pause()
            return
        self.patience.again()
        letter = aligned(LINE + self.nbytes)
        self.comm.Recv(letter, source=self._status.Get_source())
        self._here[int(letter[:LINE].view(np.int64)[0])] = letter[LINE:]
