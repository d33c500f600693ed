"""An actor: takes the newest parameters, acts, sends, and waits only if its learner is behind.

    handle control messages → wait for room → newest parameters → unroll [T, B] → pack → offer

It waits deliberately in two cases. In lock-step the parameters for unroll s are those after s unrolls have
been learned from. In a replayed run it requests the parameters that made its unroll s in the recorded run.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import jax
import numpy as np

from jaxrl_hpc.comm.messaging import ControlMessage, Kind
from jaxrl_hpc.comm.waiting import Backoff
from jaxrl_hpc.metrics.trace import Trace
from jaxrl_hpc.types import Array, PyTree, StopRequest
from jaxrl_hpc.workflows.actor_learner.messages import ActorPrograms, ActorState, Header, Link, UnrollMessage


class Policies:
    """Parameters received so far. `current`: the newest, or with `lag` at least that many versions older."""

    def __init__(self, acting: ActorPrograms, lag: int) -> None:
        self._acting, self._lag = acting, lag
        self._known: deque[tuple[int, np.ndarray]] = deque()  # packed: most are never used
        self._used: tuple[np.ndarray, PyTree] | None = None  # packed and as arrays
        self.newest = -1

    def add(self, version: int, buffer: np.ndarray) -> None:
        self._known.append((version, buffer.copy()))  # the transport reuses its buffer
        self.newest = version
        while len(self._known) > 1 and self._known[1][0] <= version - self._lag:
            self._known.popleft()

    @property
    def current(self) -> tuple[int, PyTree]:
        version, buffer = self._known[0]
        if self._used is None or self._used[0] is not buffer:
            self._used = buffer, jax.tree.map(jax.numpy.array, self._acting.params.unpack(buffer))
        return version, self._used[1]


class Actor:
    """One actor rank, from the learner's START to its STOP."""

    def __init__(
        self,
        acting: ActorPrograms,
        link: Link,
        trace: Trace,
        *,
        lag: int,
        lockstep: bool,
        replayed: bool,
        given_up: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        self._given_up, self._told = given_up, (0, 0)  # episodes dropped and restarted, by outside simulators
        self.roles, self.channel, self.control, self.watchdog = link
        self.acting, self.trace, self.lockstep, self.replayed = acting, trace, lockstep, replayed
        self.learner = self.roles.learner_of(self.roles.number)
        self.policies = Policies(acting, 0 if replayed else lag)  # a recorded schedule includes the lag
        self.backoff = Backoff()
        self.state: ActorState
        self.message = acting.message.empty()
        self.ready_for = -1  # replayed: the unroll that the present parameters were asked for
        self.asked_for = -1
        self.snapshot: int | None = None  # that is waited for
        self.stopped: bool | None = None  # by the learner: whether the run is finished
        self._signalled = False
        self._waiting_since = 0.0
        self._idle_before = 0.0
        self._compiled = False  # the first unroll takes as long as the compiler does

    def begin(self, key: Array) -> None:
        """Wait for the learner, which may compile for a long time, and start fresh or from a state."""
        self.watchdog.at(f"waiting for the learner, rank {self.learner}, to start", 0, armed=False)
        while (note := self.control.receive()) is None or note.kind != Kind.START:
            if note is not None:
                self.obey(note)
            self.backoff.pause()
        self.backoff.reset()
        self.trace.begin(note.number / 1000)
        if note.payload.size:
            state = self.acting.state.unpack(note.payload)
            rollout = jax.tree.map(jax.numpy.array, state.rollout)
            self.state = ActorState(rollout, int(state.sequence))
        else:
            self.state = ActorState(self.acting.start(key, np.int32(self.roles.number)), note.extra)

    def serve(self, signal: StopRequest) -> bool:
        """Act until STOP -> whether the run is finished. A signal's `number` is forwarded."""
        while self.stopped is None:
            self.listen(signal)
            if self.stopped is not None:
                break
            if self.snapshot is not None:
                self.report()
            if not self.prepared():
                continue
            self.act()
            self.deliver(signal)
        return self.stopped

    def listen(self, signal: StopRequest) -> None:
        while (note := self.control.receive()) is not None:
            self.obey(note)
        if signal.number and not self._signalled:
            self._signalled = True
            self.control.send(self.learner, Kind.SIGNAL, signal.number)
        if (now := self._given_up()) != self._told:
            dropped, restarted = (new - old for new, old in zip(now, self._told, strict=True))
            self.control.send(self.learner, Kind.GIVEN_UP, dropped, restarted)
            self._told = now

    def obey(self, note: ControlMessage) -> None:
        if note.kind == Kind.STOP:
            self.stopped = bool(note.number)
        elif note.kind == Kind.SNAPSHOT:
            self.snapshot = note.number
        elif note.kind == Kind.PARAMETERS:
            self.policies.add(note.number, note.payload)
            self.ready_for = note.extra

    def report(self) -> None:
        """Send the state between two unrolls; all unrolls before it have been sent."""
        assert self.snapshot is not None
        payload = self.acting.state.empty()
        self.acting.state.pack(self.state._replace(sequence=np.int64(self.state.sequence)), payload)
        self.control.send(self.learner, Kind.STATE, self.snapshot, self.channel.lost, payload)
        self.snapshot = None

    def prepared(self) -> bool:
        """Whether there is room for the next unroll and its parameters are here; pauses if not."""
        sequence = self.state.sequence
        found = None if self.replayed else self.channel.newest()  # at once: the next version can come then
        if found is not None:
            self.policies.add(*found)
        if not self.channel.room():
            self.wait(f"waiting for rank {self.learner} to take its unrolls")
            return False
        if self.replayed:
            if self.asked_for < sequence:
                self.control.send(self.learner, Kind.WANTED, sequence)
                self.asked_for = sequence
            good = self.ready_for == sequence
        else:
            good = self.policies.newest >= (sequence if self.lockstep else 0)
        if good:
            self.go_on()
            return True
        self.wait(f"waiting for parameters from rank {self.learner}")
        return False

    def wait(self, phase: str) -> None:
        """Only the start of a wait counts as progress: a wait that is too long ends the job."""
        if not self.backoff.waiting:
            self.watchdog.at(phase, self.state.sequence, often=True)
            self._waiting_since = time.perf_counter()
        self.backoff.pause()

    def go_on(self) -> None:
        if self.backoff.waiting:
            self.trace.since("waiting", self._waiting_since)
        self.backoff.reset()

    def act(self) -> None:
        began = time.perf_counter()
        self.watchdog.at("acting", self.state.sequence, armed=self._compiled, often=True)
        self._compiled = True
        version, params = self.policies.current
        rollout, ended, trajectory, priority = self.acting.unroll(params, self.state.rollout)
        header = Header(
            np.int64(self.roles.number),
            np.int64(self.state.sequence),
            np.int64(version),
            np.float64(0),
            np.float64(self.backoff.seconds - self._idle_before),
        )
        self._idle_before = self.backoff.seconds
        jax.block_until_ready(trajectory)
        header = header._replace(busy=np.float64(time.perf_counter() - began))
        self.acting.message.pack(UnrollMessage(header, ended, trajectory, priority), self.message)
        self.state = ActorState(rollout, self.state.sequence + 1)
        self.trace.since("acting", began, version=version)

    def deliver(self, signal: StopRequest) -> None:
        while self.stopped is None and not self.channel.offer(self.message):
            self.listen(signal)
            self.wait(f"waiting for rank {self.learner} to take its unrolls")
        self.go_on()
