"""Unrolls of every worker, sent to all other workers, numbered by exchange.

The worker of exchange n first adds the unrolls of all exchanges before n, in this order, so that its replay
depends only on the order of exchanges. It waits for messages in flight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from jaxrl_hpc.comm.buffers import aligned
from jaxrl_hpc.comm.messaging import Outbox
from jaxrl_hpc.comm.waiting import Backoff
from jaxrl_hpc.comm.watchdog import Watchdog

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

LINE = 64  # bytes


class ExchangeLog:
    """One worker's end. Made by all of them together."""

    def __init__(self, comm: Intracomm, nbytes: int, watchdog: Watchdog) -> None:
        from mpi4py import MPI

        self._any, self._status = MPI.ANY_SOURCE, MPI.Status()
        self.comm, self.nbytes, self.watchdog = comm.Clone(), nbytes, watchdog
        self._outbox = Outbox(self.comm)
        self._here: dict[int, np.ndarray] = {}
        self._next = 0  # the first exchange that has not been added
        self.backoff = Backoff()

    def begin(self, number: int) -> None:
        """Start: unrolls of exchanges before this one are known to all."""
        self._next = number

    def give(self, number: int, data: np.ndarray) -> None:
        """Send bytes [nbytes] uint8 of this worker's exchange to all others."""
        letter = aligned(LINE + self.nbytes)
        letter[:LINE].view(np.int64)[0] = number
        letter[LINE:] = data
        for rank in range(self.comm.Get_size()):
            if rank != self.comm.Get_rank():
                self._outbox.send(rank, letter)
        self._here[number] = np.zeros(0, np.uint8)  # one's own

    def take(self, before: int) -> list[np.ndarray]:
        """Other workers' bytes of exchanges before this one that were not taken yet, in order."""
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
            if not self.backoff.waiting:
                self.watchdog.at(f"waiting for the unrolls of exchange {self._next}", self._next)
            self.backoff.pause()
            return
        self.backoff.reset()
        letter = aligned(LINE + self.nbytes)
        self.comm.Recv(letter, source=self._status.Get_source())
        self._here[int(letter[:LINE].view(np.int64)[0])] = letter[LINE:]
