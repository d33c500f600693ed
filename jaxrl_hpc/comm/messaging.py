"""Non-blocking point-to-point messages: an inbox, an outbox, and control messages on top of them.

The data of a large message moves only while its sender calls MPI, and a sender in a long computation must not
delay messages of others: receives never block (MPI_Improbe, MPI_Imrecv), and the messages of one sender stay
in order. An outbox keeps buffers until MPI has sent them.

A control message is rare, small, in order and never lost: 64 bytes of numbers and an optional payload of raw
bytes, on a communicator of its own."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxrl_hpc.comm.buffers import aligned

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


class Outbox:
    """Sends without waiting. Buffers are kept until MPI has sent them and must not be written to again."""

    def __init__(self, comm: Intracomm) -> None:
        from mpi4py import MPI

        self._comm, self._byte = comm, MPI.BYTE
        self._sending: list[tuple[Any, np.ndarray]] = []

    def send(self, rank: int, buffer: np.ndarray, tag: int = 0) -> None:
        self._sending = [(request, kept) for request, kept in self._sending if not request.Test()]
        self._sending.append((self._comm.Isend([buffer, self._byte], dest=rank, tag=tag), buffer))

    def empty(self) -> bool:
        """Whether all buffers have been sent."""
        return all(request.Test() for request, _ in self._sending)

    def flush(self) -> None:
        """Wait until all have been sent."""
        for request, _ in self._sending:
            request.Wait()


class Inbox:
    """Messages to this rank, received without waiting; those of one sender stay in order."""

    def __init__(self, comm: Intracomm, source: int | None = None, tag: int | None = None) -> None:
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
        """Begin to receive one more message, if one is pending."""
        message = self._comm.Improbe(source=self._source, tag=self._tag, status=self._status)
        if message is None:
            return False
        buffer = aligned(self._status.Get_count(self._byte))
        self._coming.append((self._status.Get_source(), buffer, message.Irecv([buffer, self._byte])))
        return True

    def take(self) -> tuple[int, np.ndarray] | None:
        """The next complete message, and its sender."""
        late = set()
        for place, (sender, buffer, request) in enumerate(self._coming):
            if sender not in late and request.Test():
                del self._coming[place]
                return sender, buffer
            late.add(sender)
        return None

    def next(self) -> tuple[int, np.ndarray] | None:
        """Like `take`, but stops receiving once a message has arrived."""
        while (found := self.take()) is None and self.begin():
            pass
        return found


HEADER = 64  # bytes, so that payloads are aligned


class Kind(IntEnum):
    """Sender, and meaning of `number`, `extra` and the payload."""

    START = 0  # learner: begin, so many milliseconds into the run; with a payload: from this state
    PARAMETERS = 1  # learner: version, sequence they are for (-1: any), packed parameters
    SNAPSHOT = 2  # learner: number of the snapshot
    STOP = 3  # learner: whether the run is finished
    STATE = 4  # actor: number of the snapshot, messages lost, packed state
    WANTED = 5  # actor: sequence of the unroll that it needs parameters for, in a replayed run
    SIGNAL = 6  # actor: number of a signal that asks the run to stop
    GIVEN_UP = 7  # actor: episodes dropped and restarted since the last such message


class ControlMessage(NamedTuple):
    rank: int  # who sent it
    kind: Kind
    number: int
    extra: int
    payload: np.ndarray  # [n] uint8, n may be 0


class Control:
    """Control messages of one rank. Made by all ranks together."""

    def __init__(self, comm: Intracomm) -> None:
        own = comm.Clone()
        self._inbox, self._outbox = Inbox(own), Outbox(own)

    def send(
        self, rank: int, kind: Kind, number: int = 0, extra: int = 0, payload: np.ndarray | None = None
    ) -> None:
        size = 0 if payload is None else payload.size
        buffer = aligned(HEADER + size)
        buffer[:HEADER].view(np.int64)[:3] = (kind, number, extra)
        if payload is not None:
            buffer[HEADER:] = payload
        self._outbox.send(rank, buffer)

    def receive(self) -> ControlMessage | None:
        """The next message, if one is complete; those of one rank stay in order."""
        found = self._inbox.next()
        if found is None:
            return None
        rank, buffer = found
        kind, number, extra = (int(x) for x in buffer[:HEADER].view(np.int64)[:3])
        return ControlMessage(rank, Kind(kind), number, extra, buffer[HEADER:])
