"""What actors and learners tell each other besides data: rare, small, in order, and never lost.

A note is 32 bytes of numbers and an optional payload of raw bytes, one MPI message on a communicator of its
own. Nobody waits: `send` leaves it to MPI, `receive` looks whether something has come.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from jaxrl_hpc.comm.inbox import Inbox
from jaxrl_hpc.comm.packing import aligned

HEADER = 64  # bytes, so that payloads are aligned


class Kind(IntEnum):
    """Who says it, and what `number`, `extra` and the payload are."""

    START = 0  # learner: begin, so many milliseconds into the run; with a payload: from this state
    PARAMETERS = 1  # learner: version, sequence they are for (-1: any), packed parameters
    SNAPSHOT = 2  # learner: number of the snapshot
    STOP = 3  # learner: whether the run is finished
    STATE = 4  # actor: number of the snapshot, messages lost, packed state
    WANTED = 5  # actor: sequence of the unroll that it needs parameters for, in a replayed run
    SIGNAL = 6  # actor: number of a signal that asks the run to stop
    GIVEN_UP = 7  # actor: episodes dropped and restarted since it last told


class Note(NamedTuple):
    rank: int  # who sent it
    kind: Kind
    number: int
    extra: int
    payload: np.ndarray  # [n] uint8, n may be 0


class Control:
    """One rank's letter box. Made by all ranks together."""

    def __init__(self, comm: Any) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = comm.Clone()
        self._sent: list[tuple[Any, np.ndarray]] = []  # requests and what they still need
        self._inbox = Inbox(self._comm)

    def send(
        self, rank: int, kind: Kind, number: int = 0, extra: int = 0, payload: np.ndarray | None = None
    ) -> None:
        size = 0 if payload is None else payload.size
        letter = aligned(HEADER + size)
        letter[:HEADER].view(np.int64)[:3] = (kind, number, extra)
        if payload is not None:
            letter[HEADER:] = payload
        self._sent = [(request, kept) for request, kept in self._sent if not request.Test()]
        self._sent.append((self._comm.Isend([letter, self._mpi.BYTE], dest=rank), letter))

    def receive(self) -> Note | None:
        """The next note, if one has come as a whole; those of one rank stay in order."""
        found = self._inbox.next()
        if found is None:
            return None
        rank, letter = found
        kind, number, extra = (int(x) for x in letter[:HEADER].view(np.int64)[:3])
        return Note(rank, Kind(kind), number, extra, letter[HEADER:])
