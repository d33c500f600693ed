"""A volatile actor: as any other (actor.py), but it may leave, and its learner may end.

With each unroll it sends the state after it. A signal ends this actor alone: it makes no further unroll,
notifies the learner, and leaves once its unrolls have been acknowledged.
"""

from __future__ import annotations

import time

import numpy as np

from jaxrl_hpc.comm.sockets.actor_end import SocketActor
from jaxrl_hpc.comm.sockets.wire import LearnerGone
from jaxrl_hpc.types import StopRequest
from jaxrl_hpc.workflows.actor_learner.actor import Actor

LEAVE_SECONDS = 10.0  # longest wait of a leaving actor for acknowledgements


class VolatileActor(Actor):
    """`deadline_seconds`: the longest wait for the learner; 0: any."""

    channel: SocketActor
    deadline_seconds: float = 0.0
    _asked = 0.0  # when it was asked to leave

    def listen(self, signal: StopRequest) -> None:
        super().listen(signal)  # passes the signal on, and the learner releases this actor
        if signal.number and not self._asked:
            self._asked = time.monotonic()

    def prepared(self) -> bool:
        if not self._asked:
            return super().prepared()
        self.wait("waiting for the learner to release it")
        if time.monotonic() - self._asked > LEAVE_SECONDS:
            self.stopped = False
        return False

    def wait(self, phase: str) -> None:
        super().wait(phase)
        waited = time.perf_counter() - self._waiting_since
        if self.deadline_seconds and waited > self.deadline_seconds:
            raise LearnerGone(f"this actor was {phase} for {waited:.0f} s")

    def deliver(self, signal: StopRequest) -> None:
        state = self.state._replace(sequence=np.int64(self.state.sequence))
        self.acting.state.pack(state, self.channel.after)
        super().deliver(signal)
