"""Exit of a process with a thread stuck inside MPI, or with a window that cannot be freed.

MPI_Finalize would block forever, or crash, and a finished run would end with an error. So such a process
exits without it: it flushes its output, waits for the other ranks, notifies the launcher, and
exits with its own status. Without that message launchers kill the remaining ranks once the first one
has exited, and a rank that a busy machine runs a little later ends by signal 9.

Functions called at exit do not get the status. A program therefore passes its main function through
`with_status`, as the command line does; otherwise an uncaught exception counts as 1 and all else as 0.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import select
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

LOOK_SECONDS = 0.01
FAILED_SECONDS = 60.0  # how long a failed rank waits for the others, which may not come
FINISHED_SECONDS = 3600.0  # how long a successful rank waits: others may still write or evaluate
ANSWER_SECONDS = 10.0  # for the launcher's confirmation
_comm: Any = None  # of all ranks, once one of them is stuck
_status: int | None = None  # None: not set


def stuck() -> bool:
    """Whether this job cannot finalise MPI; the same on all ranks."""
    return _comm is not None


def remember(comm: Intracomm) -> None:
    """Mark all ranks of `comm` as stuck; the communicator is kept for one more barrier."""
    global _comm
    prepare()
    _comm = comm


@functools.cache
def prepare() -> None:
    """To be called when MPI starts: what is registered for exit later still runs before `_exit`."""
    atexit.register(_exit)


def with_status(main: Callable[[], int]) -> int:
    """Calls the main function of a program; what it returns or raises becomes the exit status."""
    global _status
    _status = 1
    try:
        _status = main()
    except SystemExit as error:
        _status = error.code if isinstance(error.code, int) else int(error.code is not None)
        raise
    return _status


def _exit() -> None:
    if not stuck():
        return
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    status = int(hasattr(sys, "last_value")) if _status is None else _status  # set by uncaught exceptions
    request, begin = _comm.Ibarrier(), time.monotonic()
    limit = FAILED_SECONDS if status else FINISHED_SECONDS
    while not request.Test():
        if time.monotonic() - begin > limit:
            _without_the_others(limit, status)
        time.sleep(LOOK_SECONDS)
    _tell_launcher()
    os._exit(status)


def _tell_launcher() -> None:
    """PMI-1's `finalize`, which MPI_Finalize would send: Hydra and Slurm listen at the descriptor PMI_FD."""
    line, version = os.environ.get("PMI_FD"), os.environ.get("MPIR_CVAR_PMI_VERSION", "pmi1")
    if line is None or not version.endswith("1"):
        return
    try:
        os.write(int(line), b"cmd=finalize\n")
        if select.select([int(line)], [], [], ANSWER_SECONDS)[0]:
            os.read(int(line), 1024)  # the confirmation
    except (OSError, ValueError):
        pass  # no launcher is listening


def _without_the_others(waited: float, status: int) -> NoReturn:
    rank = _comm.Get_rank()
    print(
        f"rank {rank} has finished and waited {waited:g} s for the others; it exits.",
        file=sys.stderr,
        flush=True,
    )
    os._exit(status or 2)
