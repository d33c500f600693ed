"""The mailbox of a learner whose actors come and go; at times there may be none.

Two things differ from `mailbox.Mailbox`. An iteration's unrolls are taken only once all of them have arrived,
so that a wait can be broken off without consequences. A snapshot involves no actor, since the transport has
the state of every stream after its last acknowledged unroll (comm/sockets/learner_end.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxrl_hpc.comm.messaging import Kind
from jaxrl_hpc.comm.sockets.learner_end import SocketLearner
from jaxrl_hpc.comm.watchdog import LONG_FACTOR, LONG_SECONDS
from jaxrl_hpc.workflows.actor_learner.mailbox import ALL, Mailbox
from jaxrl_hpc.workflows.actor_learner.messages import ActorSnapshot, UnrollMessage


class WaitEnded(Exception):
    """The wait for unrolls was broken off; nothing was taken."""


class WaitRules(NamedTuple):
    """When a learner gives up waiting for unrolls."""

    stop: Callable[[], int]  # number of the signal that asks the run to stop, 0 if none
    deadline_seconds: float  # without an unroll; 0: never


class ElasticMailbox(Mailbox):
    """The `Mailbox` of the learner of an elastic run."""

    channel: SocketLearner

    def __init__(self, *arguments: Any, wait: WaitRules, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.rules = wait

    def take(self, count: int, version: int) -> list[UnrollMessage]:
        """Raises WaitEnded if asked to stop, or if no unroll arrives in time."""
        self.watchdog.at("waiting for unrolls of actors", version, often=True)
        began = time.monotonic()
        while (missing := count - self._usable(version)) > 0:
            self.poll(missing)
            if count > self._usable(version):
                self._check(began)
                self.backoff.pause()
        self.backoff.reset()
        return super().take(count, version)

    def _usable(self, version: int) -> int:
        """Unrolls in the queue that are not too old."""
        if self.max_lag is None:
            return len(self.queue)
        ages = (version - int(self._unpacked(queued).header.version) for queued in self.queue)
        return sum(age <= self.max_lag for age in ages)

    def _check(self, began: float) -> None:
        if number := self.rules.stop():
            raise WaitEnded(f"asked to stop by signal {number}")
        there, limit = len(self.channel.members), self.rules.deadline_seconds
        if not limit:
            return
        now, longest = time.monotonic(), max(LONG_FACTOR * limit, LONG_SECONDS)
        if there and not self.channel.delivered:  # they compile first
            limit = longest
        waited = now - max(began, self.channel.last_unroll)
        # actors that join, fail and join again must not delay the end for ever
        if now - max(began, self.channel.last_event) > limit or waited > longest:
            who = "no actor is connected" if not there else f"none arrived from {there} connected actors"
            raise WaitEnded(f"the learner waited {waited:.0f} s for unrolls, and {who}")

    def poll(self, room: int) -> None:
        for arrival in self.channel.drain(min(ALL, max(0, room))):
            self.queue.append(self._queued(arrival.message))
        while (note := self.control.receive()) is not None:
            if note.kind == Kind.GIVEN_UP:
                self._given_up(note.number, note.extra)

    def snapshot(self) -> ActorSnapshot:
        """Streams up to their last acknowledged unrolls, and those that have not been learned from."""
        if self.record:
            self.record.flush()
        known = {n: s.state for n, s in sorted(self.channel.streams.items()) if s.state is not None}
        empty = ActorSnapshot.nothing(self.acting)
        counts = dict(self.channel.counts)
        # the run that continues from here starts without actors
        counts["lost_actors"] += len(self.channel.members)
        return empty._replace(
            ids=np.array(list(known), np.int64),
            states=np.stack(list(known.values())) if known else empty.states,
            pending=np.stack([queued.buffer for queued in self.queue]) if self.queue else empty.pending,
            taken=self.taken,
            dropped=self.dropped,
            lost=counts["discarded_unrolls"],
            counts=np.array(list(counts.values()), np.int64),
        )

    def stop(self, finished: bool) -> None:
        self.channel.stop(finished)
