"""An actor without JAX programs, for tests: joins a learner and sends numbered unrolls until it is released.

python -m tests.comm.socket_actor PLACE     where PLACE is JSON: hosts, port, public_key, token, in_flight, …

It prints "joined NUMBER LENGTH", and in the end "released FINISHED" or "gone".
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from jaxrl_hpc.comm.messaging import Kind
from jaxrl_hpc.comm.sockets.actor_end import LearnerPlace, SocketActor
from jaxrl_hpc.comm.sockets.wire import LearnerGone, SocketSizes
from jaxrl_hpc.comm.waiting import Backoff

MESSAGE, PARAMS, STATE = 64, 128, 64  # bytes


def sizes(in_flight: int = 2) -> SocketSizes:
    return SocketSizes(MESSAGE, PARAMS, STATE, in_flight)


def numbers(size: int, *values: int) -> np.ndarray:
    """A buffer that begins with these numbers."""
    buffer = np.zeros(size, np.uint8)
    buffer.view(np.int64)[: len(values)] = values
    return buffer


def first(buffer: np.ndarray, count: int = 2) -> list[int]:
    return buffer.view(np.int64)[:count].tolist()


def send(actor: SocketActor) -> bool:
    """Offer the next unroll of the actor's stream."""
    actor.after = numbers(STATE, actor.number, actor.made + 1)
    return actor.offer(numbers(MESSAGE, actor.number, actor.made))


def main() -> None:
    told = json.loads(sys.argv[1])
    place = LearnerPlace(told["hosts"], told["port"], told["public_key"], told["token"], "the learner")
    actor = SocketActor(place, sizes(told["in_flight"]), told["runs"], told["lost_seconds"])
    try:
        actor.join(time.monotonic() + 600, lambda: False)
        start = None
        while start is None:
            start = actor.receive()
        assert start.kind == Kind.START
        print(f"joined {actor.number} {start.extra}", flush=True)
        backoff = Backoff()
        while True:
            note = actor.receive()
            if note is not None:
                assert note.kind == Kind.STOP
                print(f"released {note.number}", flush=True)
                return
            if not send(actor):
                backoff.pause()
    except LearnerGone as gone:
        print(f"gone: {gone}", flush=True)
    finally:
        actor.close()


if __name__ == "__main__":
    main()
