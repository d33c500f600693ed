"""Exit of a process with a thread stuck inside MPI, or a window that it cannot free.

MPI_Finalize would block forever, or crash, and a finished run would end with an error. So such a process
exits without it: it flushes its output, waits for the other ranks, tells the launcher that it has finished,
and exits with its own status. Without that message launchers kill the remaining ranks once the first one
has exited, and a rank that a busy machine runs a little later ends by signal 9.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import sys
import time
from typing import Any, NoReturn

LOOK_SECONDS = 0.01
FAILED_SECONDS = 60.0  # that one with an error waits for the others, which may not come
FINISHED_SECONDS = 3600.0  # that one without waits: others may still write or evaluate
ANSWER_SECONDS = 10.0  # for the launcher to confirm that it knows
_meeting: Any = None  # a communicator
_status = 0


def stuck() -> bool:
    """Whether this job has left something behind inside MPI; the same on all ranks."""
    return _meeting is not None


def remember(comm: Any) -> None:
    """Mark all ranks of `comm` as stuck; the communicator is kept for one more barrier."""
    global _meeting
    if _meeting is None:
        _note_status()
    _meeting = comm


def _note_status() -> None:
    """Functions that are called at exit are not told the status: it is seen where it is given."""
    plain_exit, plain_hook = sys.exit, sys.excepthook

    def leave(status: Any = None, /) -> NoReturn:
        global _status
        _status = status if isinstance(status, int) else int(status is not None)
        plain_exit(status)

    def failed(*error: Any) -> None:
        global _status
        _status = 1
        plain_hook(*error)

    sys.exit, sys.excepthook = leave, failed


@atexit.register  # on import, so that what others register later comes before it
def _leave() -> None:
    if not stuck():
        return
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    request, begin = _meeting.Ibarrier(), time.monotonic()
    backoff = FAILED_SECONDS if _status else FINISHED_SECONDS
    while not request.Test():
        if time.monotonic() - begin > backoff:
            _without_the_others(backoff)
        time.sleep(LOOK_SECONDS)
    _tell_launcher()
    os._exit(_status)


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


def _without_the_others(waited: float) -> NoReturn:
    rank = _meeting.Get_rank()
    print(
        f"rank {rank} has ended and waited {waited:g} s for the others; it leaves.",
        file=sys.stderr,
        flush=True,
    )
    os._exit(_status or 2)
