"""Vectors that ranks publish in their own memory, readable by others at any time.

    begun    int64: the rank has begun to write version `begun`
    done     int64: version `done` can be read
    reads    2 × int64: reads of even and of odd versions, counted only while a schedule is replayed
    buffers  2 × [nbytes]: version v lies in buffer v mod 2

Writers never wait, and readers need not: a copy is whole if no write of version v + 2 had begun at its end.
When a schedule is replayed, readers wait for the version that it names, and writers for the reads of the
version that they overwrite. That cannot deadlock: the order in which all of it happened satisfies every wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jaxrl_hpc.comm.buffers import aligned
from jaxrl_hpc.comm.rma.progress_thread import ProgressThread
from jaxrl_hpc.comm.rma.selftest import examine
from jaxrl_hpc.comm.rma.window import Window, rounded
from jaxrl_hpc.comm.waiting import wait_for
from jaxrl_hpc.errors import UserError

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

LINE, DEPTH = 64, 2
ATTEMPTS = 3  # at a copy, while the writer is faster


class PeerVector(NamedTuple):
    version: int
    numbers: np.ndarray  # [P] float32, a copy


class Peers:
    """One rank's end. Made and closed by all together."""

    def __init__(self, comm: Intracomm, size: int, seconds: float) -> None:
        verdict = examine(comm)
        if not verdict.works:
            raise UserError(
                f"workflow gossip needs one-sided memory, which cannot be used here ({verdict.text}): use "
                "workflow.name=parameter_server with workflow.rule=server"
            )
        self.size, self.seconds = size, seconds
        self._item = rounded(4 * size)
        self.window = Window(comm, (2 + DEPTH) * LINE + DEPTH * self._item)
        self._thread = ProgressThread(comm) if verdict.needs_thread else None
        if self._thread:
            self._thread.__enter__()

    def publish(self, numbers: np.ndarray, version: int, reads_before: int | None = None) -> None:
        """Replace version − 2 by [P] float32.

        Args:
          reads_before: replayed: how often versions in this buffer are read before; waits for that.
        """
        rank, place = self.window.rank, version % DEPTH
        if reads_before:
            self._wait(
                lambda: self.window.peek(rank, self._reads(place)) >= reads_before or None,
                f"all reads of version {version - DEPTH} of the schedule",
            )
        self.window.store(rank, 0, version)
        self.window.write(rank, self._buffer(version), numbers.view(np.uint8))
        self.window.store(rank, LINE, version)

    def newest(self, rank: int) -> int:
        return self.window.peek(rank, LINE)

    def read(self, rank: int, least: int, exact: bool = False) -> PeerVector | None:
        """The newest vector of a rank, if its version is `least` or later; None if not, or if the rank writes
        faster than it can be copied.

        Args:
          exact: `least` itself where it is still there, though a newer one is too.
        """
        for _ in range(ATTEMPTS):
            newest = self.newest(rank)
            if newest < least:
                return None
            version = least if exact and newest == least + 1 else newest
            if (found := self._copy(rank, version)) is not None:
                return found
        return None

    def wait_for(self, rank: int, least: int, exact: bool) -> PeerVector:
        """Like `read`, but waits for it."""
        what = f"version {least} of rank {rank}"
        return wait_for(lambda: self.read(rank, least, exact), self.seconds, self.window.rank, what)

    def repeat(self, rank: int, version: int) -> PeerVector:
        """This version, for a replayed schedule; notifies the writer that it has been read."""
        self._wait(lambda: self.newest(rank) >= version or None, f"version {version} of rank {rank}")
        found = self._copy(rank, version)
        if found is None:
            raise UserError(
                f"run.replay_schedule: version {version} of rank {rank} is gone: replay a run of the same "
                "config with as many ranks"
            )
        self.window.atomic("sum", rank, self._reads(version % DEPTH), 1)
        return found

    def _wait(self, poll: Callable[[], bool | None], what: str) -> None:
        wait_for(poll, self.seconds, self.window.rank, what)

    def _copy(self, rank: int, version: int) -> PeerVector | None:
        out = aligned(self._item)[: 4 * self.size]
        self.window.read(rank, self._buffer(version), out)
        whole = self.window.peek(rank, 0) < version + DEPTH
        return PeerVector(version, out.view(np.float32)) if whole else None

    @staticmethod
    def _reads(place: int) -> int:
        return (2 + place) * LINE

    def _buffer(self, version: int) -> int:
        return (2 + DEPTH) * LINE + version % DEPTH * self._item

    def close(self) -> None:
        self.window.barrier()
        if self._thread:
            self._thread.__exit__()
        self.window.free()
