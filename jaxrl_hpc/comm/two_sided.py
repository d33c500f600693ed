"""Actors and learners connected by ordinary messages; all sends and receives are non-blocking.

Sends are synchronous and non-blocking (MPI_Issend): one is complete when its receiver has begun to take it,
so the number of incomplete sends is the number of messages in flight, regardless of buffering in MPI. An
actor may have `in_flight` of them. Backpressure: a slow learner throttles its actors, and memory stays
bounded. A learner has one parameter message per actor in flight; an actor that is slow to take it skips
versions.

Receives are in `messaging.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxrl_hpc.comm.buffers import aligned
from jaxrl_hpc.comm.messaging import Inbox
from jaxrl_hpc.comm.roles import Roles
from jaxrl_hpc.comm.transport import Arrival, BufferSizes, Transport
from jaxrl_hpc.comm.waiting import Backoff

VERSION = 64  # bytes before parameters, so that these are aligned
DATA, END = 0, 1  # tags


class TwoSidedActor:
    def __init__(self, roles: Roles, sizes: BufferSizes) -> None:
        self._messages, self._params = roles.comm.Clone(), roles.comm.Clone()
        self._learner = roles.learner_of(roles.number)
        self._inbox = Inbox(self._params, source=self._learner, tag=DATA)
        self._buffers = [aligned(sizes.message) for _ in range(sizes.in_flight)]
        self._requests: list[Any] = [None] * sizes.in_flight

    @property
    def lost(self) -> int:
        return 0

    def room(self) -> bool:
        return self._free() is not None

    def _free(self) -> int | None:
        done = (request is None or request.Test() for request in self._requests)
        return next((i for i, free in enumerate(done) if free), None)

    def offer(self, message: np.ndarray) -> bool:
        free = self._free()
        if free is None:
            return False
        np.copyto(self._buffers[free], message)
        self._requests[free] = self._messages.Issend(self._buffers[free], dest=self._learner, tag=DATA)
        return True

    def newest(self) -> tuple[int, np.ndarray] | None:
        found = None
        while (letter := self._inbox.next()) is not None:
            found = letter[1]
        return None if found is None else (int(found[:VERSION].view(np.int64)[0]), found[VERSION:])

    def close(self) -> None:
        """The learner drains all messages in flight up to this end mark."""
        nothing, ended, backoff = np.zeros(0, np.uint8), False, Backoff()
        self._requests.append(self._messages.Issend(nothing, dest=self._learner, tag=END))
        while not (ended and all(request is None or request.Test() for request in self._requests)):
            self.newest()
            if not ended and self._params.Iprobe(source=self._learner, tag=END):
                self._params.Recv(nothing, source=self._learner, tag=END)
                ended = True
            backoff.pause()
        self.newest()
        while len(self._inbox):  # what came just before the end
            self._inbox.take()
            backoff.pause()


class TwoSidedLearner:
    gone: Callable[[int], int] | None = None

    def __init__(self, roles: Roles, sizes: BufferSizes) -> None:
        from mpi4py import MPI

        self._any, self._status = MPI.ANY_SOURCE, MPI.Status()
        self._messages, self._params = roles.comm.Clone(), roles.comm.Clone()
        self._inbox = Inbox(self._messages, tag=DATA)
        self._size, self._first = sizes.message, roles.learners
        self._actors = [roles.rank_of(actor) for actor in roles.actors_of(roles.rank)]
        self._latest: np.ndarray | None = None
        self._sending: dict[int, np.ndarray] = {}  # rank -> what it was sent last
        self._requests: dict[int, Any] = {}

    @property
    def counts(self) -> dict[str, int]:
        return {}

    def publish(self, version: int, params: np.ndarray) -> None:
        letter = aligned(VERSION + params.size)
        letter[:VERSION].view(np.int64)[0] = version
        letter[VERSION:] = params
        self._latest = letter
        self._push()

    def _push(self) -> None:
        """Send the newest parameters to every actor that has received the last ones."""
        for rank in self._actors:
            if self._latest is self._sending.get(rank):
                continue
            if rank not in self._requests or self._requests[rank].Test():
                assert self._latest is not None
                self._sending[rank] = self._latest
                self._requests[rank] = self._params.Issend(self._latest, dest=rank, tag=DATA)

    def drain(self, limit: int) -> list[Arrival]:
        self._push()
        found: list[Arrival] = []
        while len(found) < limit and (message := self._inbox.next()) is not None:
            rank, buffer = message
            found.append(Arrival(rank - self._first, buffer))
        return found

    def waiting(self) -> int:
        """Actors with a message in flight."""
        probed = sum(bool(self._messages.Iprobe(source=rank, tag=DATA)) for rank in self._actors)
        return probed + len(self._inbox)

    def close(self) -> None:
        """Wait for the end marks of all actors."""
        nothing, running, backoff = np.zeros(0, np.uint8), set(self._actors), Backoff()
        self._latest = None
        ends = [self._params.Issend(nothing, dest=rank, tag=END) for rank in self._actors]
        ends += self._requests.values()
        while running or len(self._inbox) or not all(request.Test() for request in ends):
            self._inbox.take()
            while self._messages.Iprobe(source=self._any, status=self._status):
                rank, tag = self._status.Get_source(), self._status.Get_tag()
                self._messages.Recv(nothing if tag == END else aligned(self._size), source=rank, tag=tag)
                if tag == END:
                    running.discard(rank)
            backoff.pause()


TWO_SIDED = Transport(actor=TwoSidedActor, learner=TwoSidedLearner)
