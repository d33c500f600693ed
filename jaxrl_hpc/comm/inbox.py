"""Messages to this rank, received without waiting; those of one sender stay in order.

The data of a large message moves only while its sender calls MPI, and a sender that sits in a long
computation must not hold up what others have sent (MPI_Improbe, MPI_Imrecv).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxrl_hpc.comm.packing import aligned


class Inbox:
    def __init__(self, comm: Any, source: int | None = None, tag: int | None = None) -> None:
        from mpi4py import MPI

        self._byte, self._status = MPI.BYTE, MPI.Status()
        self._comm = comm
        self._source = MPI.ANY_SOURCE if source is None else source
        self._tag = MPI.ANY_TAG if tag is None else tag
        self._coming: list[tuple[int, np.ndarray, Any]] = []  # sender, buffer, request: in order of arrival

    def __len__(self) -> int:
        """Messages that are being received."""
        return len(self._coming)

    def begin(self) -> bool:
        """Begin to receive one more message, if one has come."""
        message = self._comm.Improbe(source=self._source, tag=self._tag, status=self._status)
        if message is None:
            return False
        buffer = aligned(self._status.Get_count(self._byte))
        self._coming.append((self._status.Get_source(), buffer, message.Irecv([buffer, self._byte])))
        return True

    def take(self) -> tuple[int, np.ndarray] | None:
        """The next message that is here as a whole, and who sent it."""
        late = set()
        for place, (sender, buffer, request) in enumerate(self._coming):
            if sender not in late and request.Test():
                del self._coming[place]
                return sender, buffer
            late.add(sender)
        return None

    def next(self) -> tuple[int, np.ndarray] | None:
        """As `take`; begins to receive more messages only until one is here."""
        while (found := self.take()) is None and self.begin():
            pass
        return found
