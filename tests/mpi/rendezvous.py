"""Three ranks: a learner, an actor that sends a large message and then calls MPI no more until that of the
other one has been taken, and the other one. With receives that wait for their sender this would never end.

python -m tests.mpi.rendezvous FOLDER
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

from jaxrl_hpc.comm.buffers import aligned
from jaxrl_hpc.comm.roles import Roles
from jaxrl_hpc.comm.transport import BufferSizes
from jaxrl_hpc.comm.two_sided import TwoSidedActor, TwoSidedLearner

SIZE = 8 << 20  # too large to be sent before its receiver asks for it


def await_file(path: Path) -> None:
    """Without calling MPI."""
    while not path.exists():
        time.sleep(0.005)


def main(folder: Path) -> None:
    comm = MPI.COMM_WORLD
    roles, sizes = Roles(comm, comm.rank, 1, 2, 1), BufferSizes(SIZE, 1024, 1)
    sent, taken = folder / "sent", folder / "taken"
    if roles.learns:
        learner = TwoSidedLearner(roles, sizes)
        order: list[int] = []
        while not learner.waiting():  # the slow actor's is the first to be seen
            pass
        sent.touch()
        while len(order) < 2:
            for arrival in learner.drain(1):
                assert (arrival.message == arrival.actor + 1).all()
                order.append(arrival.actor)
                taken.touch()
        print(order, flush=True)
        learner.close()
        return
    actor = TwoSidedActor(roles, sizes)
    message = aligned(SIZE)
    np.copyto(message, np.uint8(roles.number + 1))
    if roles.number == 0:
        assert actor.offer(message)
        await_file(taken)  # a long computation
    else:
        await_file(sent)
        assert actor.offer(message)
    actor.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
