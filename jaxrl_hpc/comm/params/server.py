"""Servers that each store a shard of the parameters and answer workers one after the other.

    worker:  change ──(a part to each server)──→ server:  combine its part, answer with it ──→ worker

A server takes requests in order of arrival or, when a schedule is replayed, in the order of the schedule;
each numbers its own exchanges. Sharded as in Gorila (Nair et al. 2015): shard s of S is the s-th part of the
bytes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jaxrl_hpc.comm.buffers import ALIGNMENT, aligned
from jaxrl_hpc.comm.messaging import Outbox
from jaxrl_hpc.comm.params.exchange import LINE, Answer, ExchangeSettings
from jaxrl_hpc.comm.waiting import Backoff
from jaxrl_hpc.comm.watchdog import Watchdog
from jaxrl_hpc.types import StopRequest

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

LOAD, READ, SWAP, STOP = 0, 1, 2, 3  # tags of requests
WARN_SECONDS = 0.5  # longer waits are reported to the watchdog


def bounds(nbytes: int, servers: int) -> list[tuple[int, int]]:
    """Where each shard begins and ends; whole cache lines, so that no number is cut."""
    lines = -(-nbytes // ALIGNMENT)
    ends = [min(nbytes, ALIGNMENT * (lines * (s + 1) // servers)) for s in range(servers)]
    return list(zip([0, *ends[:-1]], ends, strict=True))


class ExchangeRequest(NamedTuple):
    rank: int  # of the worker
    tag: int
    since: int
    payload: np.ndarray


class Client:
    """A worker's end (exchange.Exchange)."""

    def __init__(
        self, comm: Intracomm, servers: list[int], settings: ExchangeSettings, watchdog: Watchdog
    ) -> None:
        self.comm, self.servers, self.watchdog = comm, servers, watchdog
        self.stored = bounds(settings.stored, len(servers))
        self.change = bounds(settings.change, len(servers))
        self.size = settings.stored
        self._since = [-1] * len(servers)  # numbers of the last exchange with each
        self.signal = (0, 0)  # that a server got, and its rank
        self.finished = False  # sent to servers when they are released
        self.backoff = Backoff()
        self._outbox = Outbox(comm)

    def load(self, data: np.ndarray, number: int) -> None:
        self._ask(LOAD, [number] * len(self.servers), [data[low:high] for low, high in self.stored])

    def read(self) -> np.ndarray:
        zeros = [0] * len(self.servers)
        return self._ask(READ, zeros, [np.zeros(0, np.uint8)] * len(self.servers)).data

    def swap(self, change: np.ndarray, since: int, turn: int | None) -> Answer:
        del turn  # servers keep the order
        known = [since if last < 0 else last + 1 for last in self._since]  # each server has its own order
        return self._ask(SWAP, known, [change[low:high] for low, high in self.change])

    def _ask(self, tag: int, known: list[int], parts: list[np.ndarray]) -> Answer:
        for server, number, part in zip(self.servers, known, parts, strict=True):
            buffer = aligned(LINE + part.size)
            buffer[:LINE].view(np.int64)[0] = number
            buffer[LINE:] = part
            self._outbox.send(server, buffer, tag)
        out = aligned(self.size)
        numbers, used = 0, True
        for place, (server, (low, high)) in enumerate(zip(self.servers, self.stored, strict=True)):
            buffer = self._receive(server, LINE + high - low)
            numbers, taken, signal = (int(x) for x in buffer[:LINE].view(np.int64)[:3])
            if tag == SWAP:
                self._since[place] = numbers
            used = used and bool(taken)
            out[low:high] = buffer[LINE:]
            if signal:
                self.signal = (signal, server)
        self._outbox.flush()
        return Answer(numbers, used, out)

    def _receive(self, server: int, size: int) -> np.ndarray:
        buffer = aligned(size)
        request, began, warned = self.comm.Irecv(buffer, source=server), time.monotonic(), False
        while not request.Test():
            if not warned and time.monotonic() - began > WARN_SECONDS:
                warned = True
                self.watchdog.at(f"waiting for the server on rank {server}", 0)
            self.backoff.pause()
        self.backoff.reset()
        return buffer

    def close(self) -> None:
        """Worker 0 releases the servers."""
        if self.comm.Get_rank() == 0:
            for server in self.servers:
                buffer = np.zeros(LINE, np.uint8)
                buffer[0] = self.finished
                self.comm.Send(buffer, dest=server, tag=STOP)


class Server:
    """One shard. `record` is called for every exchange; `turn` gives the next worker, if that is fixed."""

    def __init__(
        self,
        comm: Intracomm,
        shard: int,
        shards: int,
        settings: ExchangeSettings,
        record: Callable[[int, int, bool], None],
        turn: Callable[[], int | None],
    ) -> None:
        from mpi4py import MPI

        self._mpi, self.comm, self.settings = MPI, comm, settings
        low, high = bounds(settings.stored, shards)[shard]
        self.data = aligned(high - low)
        self.number = 0
        self.record, self.turn = record, turn
        self.loaded = False
        self._waiting: dict[int, deque[ExchangeRequest]] = {}

    def serve(self, watchdog: Watchdog, signal: StopRequest) -> bool:
        """Serve until worker 0 sends STOP -> whether the run is finished."""
        backoff = Backoff()
        while True:
            request = self._next()
            if request is None:
                if not backoff.waiting:
                    watchdog.at("waiting for workers", self.number, armed=False)
                backoff.pause()
                continue
            backoff.reset()
            if request.tag == STOP:
                return bool(request.since)
            number, used = self.number, True
            if request.tag == LOAD:
                self.data[:], self.number, number = request.payload, request.since, request.since
                self.loaded = True
            elif request.tag == SWAP:
                used = self._combine(request)
            self._answer(request.rank, number, used, signal)

    def _combine(self, request: ExchangeRequest) -> bool:
        settings, lag = self.settings, self.number - request.since
        used = settings.max_lag is None or lag <= settings.max_lag
        if used:
            settings.combine(self.data, request.payload, self.number)
        self.record(request.rank, self.number, used)
        self.number += 1
        return used

    def _answer(self, rank: int, number: int, used: bool, signal: StopRequest) -> None:
        buffer = aligned(LINE + self.data.size)
        buffer[:LINE].view(np.int64)[:3] = (number, used, signal.number)
        buffer[LINE:] = self.data
        self.comm.Send(buffer, dest=rank)  # it is waiting for this

    def _next(self) -> ExchangeRequest | None:
        """The next request: loads and reads at once, exchanges in order."""
        status = self._mpi.Status()
        if self.comm.Iprobe(status=status):
            buffer = aligned(status.Get_count(self._mpi.BYTE))
            rank, tag = status.Get_source(), status.Get_tag()
            self.comm.Recv(buffer, source=rank, tag=tag)
            request = ExchangeRequest(rank, tag, int(buffer[:LINE].view(np.int64)[0]), buffer[LINE:])
            if tag != SWAP:
                return request
            self._waiting.setdefault(rank, deque()).append(request)
        turn = self.turn() if self._waiting else None
        for rank in [turn] if turn is not None else list(self._waiting):
            if self._waiting.get(rank):
                request = self._waiting[rank].popleft()
                if not self._waiting[rank]:
                    del self._waiting[rank]
                return request
        return None
