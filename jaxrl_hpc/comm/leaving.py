"""How a process ends that has left a thread behind inside MPI, or a window that it cannot free.

MPI_Finalize would wait for them for ever, or crash, and a run that finished would end with an error. So such
a process leaves without it: what it has to say is flushed, then it waits for the other ranks, because
launchers end the rest of a job when a rank leaves without a word, and then it is gone, with the status that
it wanted.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from typing import Any, NoReturn

LOOK_SECONDS = 0.01
FAILED_SECONDS = 60.0  # that one with an error waits for the others, which may not come
FINISHED_SECONDS = 3600.0  # that one without waits: others may still write or evaluate
_meeting: Any = None  # a communicator
_status = 0


def stuck() -> bool:
    """Whether this job has left something behind inside MPI; the same on all ranks."""
    return _meeting is not None


def remember(comm: Any) -> None:
    """All ranks of `comm`, which is kept to meet once more, are stuck."""
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
    patience = FAILED_SECONDS if _status else FINISHED_SECONDS
    while not request.Test():
        if time.monotonic() - begin > patience:
            _without_the_others(patience)
        time.sleep(LOOK_SECONDS)
    os._exit(_status)


def _without_the_others(waited: float) -> NoReturn:
    rank = _meeting.Get_rank()
    print(
        f"rank {rank} has ended and waited {waited:g} s for the others; it leaves.",
        file=sys.stderr,
        flush=True,
    )
    os._exit(_status or 2)
