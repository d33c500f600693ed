"""A thread by which MPI makes progress while this rank computes.

With some MPI libraries an operation on a rank's window makes progress only while that rank calls MPI; the
others would wait during a long compiled call. A thread that calls MPI periodically (a probe on a
communicator of its own, where nothing ever arrives) avoids that.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

INTERVAL_SECONDS = 0.0005


class ProgressThread:
    """A context manager. Making one is collective. It runs during compiled calls, which release the GIL."""

    def __init__(self, comm: Intracomm, interval: float = INTERVAL_SECONDS) -> None:
        self._comm, self._interval = comm.Dup(), interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mpi-progress", daemon=True)

    def __enter__(self) -> ProgressThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._comm.Free()

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self._comm.Iprobe()
