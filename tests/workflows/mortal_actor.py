"""An actor that dies or leaves after so many unrolls, for tests: what runs in its process.

`before` or `after`: killed before or after it has sent its last unroll; `acting`: in the midst of making one
more; `leave`: it gets SIGTERM; `stay`: nothing happens to it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from jaxrl_hpc.runtime.acting import act
from jaxrl_hpc.types import StopRequest
from jaxrl_hpc.workflows.actor_learner.elastic_actor import VolatileActor


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arrange(unrolls: int, how: str) -> None:
    """Replaces the actor's methods by some to which things happen."""
    deliver, acting = VolatileActor.deliver, VolatileActor.act
    made = 0

    def delivering(self: VolatileActor, asked: StopRequest) -> None:
        nonlocal made
        made += 1
        if how == "before" and made == unrolls:
            die()
        deliver(self, asked)
        if how == "after" and made == unrolls:
            die()
        if how == "leave" and made == unrolls:
            os.kill(os.getpid(), signal.SIGTERM)

    def dying(self: VolatileActor) -> None:
        if how == "acting" and made == unrolls:
            threading.Timer(0.001, die).start()
        acting(self)

    VolatileActor.deliver = delivering  # type: ignore[method-assign]
    VolatileActor.act = dying  # type: ignore[method-assign]


def live(folder: str, unrolls: int, how: str, output: str) -> None:
    """Act for a run; what is said goes to a file."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    arrange(unrolls, how)
    sys.exit(act(folder, 600.0, say=lambda text: print(text, flush=True)))
