"""Kill a process that saves in a loop, again and again.

    kill_while_saving.py DIRECTORY KILLS   prints: kills, kills during a save, last step

Forked after the imports, so that a trial takes milliseconds. The child reports the begin and the end
of each save; what is restored must be a step it could have reached, bit for bit. Every other child kills
itself at one of the syncs inside a save; the others are killed from outside, at any moment.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time

from jaxrl_hpc.checkpoint.checkpointer import Checkpointer
from jaxrl_hpc.errors import UserError
from tests.checkpoint.checkpoint_state import state_at
from tests.checkpoint.test_checkpointer import assert_same


def die_at(sync: int) -> None:
    """This process is killed at the sync of this number."""
    numbers, fsync = itertools.count(), os.fsync

    def last(handle: int) -> None:
        if next(numbers) == sync:
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(handle)

    os.fsync = last  # type: ignore[assignment]


def save_forever(directory: str, pipe: int) -> None:
    checkpointer = Checkpointer(directory)
    try:
        step = checkpointer.restore(state_at(0))[0]
    except UserError:
        step = 0
    while True:
        step += 1
        state = state_at(step)
        os.write(pipe, b"begin %d\n" % step)
        checkpointer.save(step, state, {"step": step})
        os.write(pipe, b"end %d\n" % step)


def main(directory: str, kills: int) -> None:
    randomness = random.Random(0)
    reached, in_save = 0, 0
    for trial in range(kills):
        sync = randomness.randrange(15) if trial % 2 else None
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            if sync is not None:
                die_at(sync)
            save_forever(directory, write)
        os.close(write)
        with os.fdopen(read) as reports:
            lines = []
            if sync is None:
                lines = [reports.readline() for _ in range(1 + 2 * randomness.randrange(4))]  # to a begin
                time.sleep(randomness.uniform(0, 0.02))  # when to strike, not synchronisation
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            lines += reports
        word, begun = lines[-1].split()
        in_save += word == "begin"
        ended = [int(line.split()[1]) for line in lines if line.startswith("end")]
        reached = max([reached, *ended])
        try:
            step, state, host = Checkpointer(directory).restore(state_at(0))
        except UserError:
            assert reached == 0
            continue
        assert reached <= step <= int(begun), (reached, step, begun)
        assert host == {"step": step}
        assert_same(state, state_at(step))
        reached = step
    print(kills, in_save, reached)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
