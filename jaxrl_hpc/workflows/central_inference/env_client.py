"""An environment rank of central inference: only steps its copies with the actions that it receives.

    send what the step led to → wait for an action → step

It has no parameters. After every unroll the server sends it the recurrent carries, so that it has the
complete state between two unrolls, which checkpoints save.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np

from jaxrl_hpc.comm.buffers import BufferLayout, aligned
from jaxrl_hpc.comm.messaging import Outbox
from jaxrl_hpc.comm.roles import Roles
from jaxrl_hpc.comm.waiting import Backoff
from jaxrl_hpc.metrics.trace import Trace
from jaxrl_hpc.rollout import RolloutState
from jaxrl_hpc.types import Array, Env, EnvStep, PyTree, StopRequest
from jaxrl_hpc.workflows.actor_learner.actor import Actor
from jaxrl_hpc.workflows.actor_learner.messages import ActorPrograms, ActorState, Link
from jaxrl_hpc.workflows.central_inference.server import (
    ACTION,
    CARRY,
    END,
    HELLO,
    STEP,
    Hello,
    MessageLayouts,
    StepReport,
)
from jaxrl_hpc.workflows.central_inference.server_state import known_of

WARN_SECONDS = 0.5  # longer waits are reported to the watchdog


def advance(env: Env, state: RolloutState, action: Array) -> tuple[RolloutState, EnvStep]:
    """One step of every copy with given actions; keys as in rollout.choose."""
    split = jax.vmap(lambda k: jax.random.split(k, 3))(state.key)
    env_state, step = env.step(split[:, 2], state.env, action)
    going = 1.0 - (step.terminated | step.truncated).astype(np.float32)
    new = state._replace(
        env=env_state,
        obs=step.obs,
        key=split[:, 0],
        returns=(state.returns + step.reward) * going,
        length=(state.length + 1.0) * going,
    )
    return new, step


class ServerConnection:
    """The rank's end of the connection: one request or answer at a time."""

    def __init__(self, roles: Roles, layouts: MessageLayouts) -> None:
        from mpi4py import MPI

        self._mpi, self._status = MPI, MPI.Status()
        self.comm, self.layouts = roles.comm.Clone(), layouts
        self.server = roles.learner_of(roles.number)
        self._outbox = Outbox(self.comm)
        self.lost = 0
        self._ended = False  # the server sends nothing more

    def send(self, tag: int, packing: BufferLayout, tree: PyTree) -> None:
        buffer = packing.empty()
        packing.pack(tree, buffer)
        self._outbox.send(self.server, buffer, tag)

    def receive(self) -> tuple[int, np.ndarray] | None:
        if not self.comm.Iprobe(source=self.server, status=self._status):
            return None
        buffer = aligned(self._status.Get_count(self._mpi.BYTE))
        tag = self._status.Get_tag()
        self.comm.Recv(buffer, source=self.server, tag=tag)
        self._ended = self._ended or tag == END
        return tag, buffer

    def close(self) -> None:
        """Send the end mark; messages that the server sent before it are discarded."""
        backoff = Backoff()
        self._outbox.send(self.server, np.zeros(0, np.uint8), END)
        while not (self._ended and self._outbox.empty()):
            self.receive()
            backoff.pause()


class EnvClient(Actor):
    """One environment rank, from the server's START to its STOP."""

    def __init__(
        self,
        acting: ActorPrograms,
        link: Link,
        trace: Trace,
        *,
        env: Env,
        length: int,
        **settings: Any,
    ) -> None:
        super().__init__(acting, link, trace, **settings)
        self.line: ServerConnection = link.channel
        self._advance = jax.jit(lambda state, action: advance(env, state, action))
        self._length, self._steps = length, 0
        self._filled: RolloutState | None = None  # after a whole unroll, until its carries are known

    def serve(self, signal: StopRequest) -> bool:
        layouts = self.line.layouts
        present = self.state.rollout
        greeting = Hello(known_of(present), np.int64(self.state.sequence))
        self.line.send(HELLO, layouts.hello, greeting)
        while self.stopped is None:
            action = self.answer(signal)
            if action is None:
                break
            began = time.perf_counter()
            present, step = self._advance(present, layouts.action.unpack(action))
            idle = self.backoff.seconds - self._idle_before
            self._idle_before = self.backoff.seconds
            jax.block_until_ready(step)
            self._steps += 1
            if self._steps == self._length:
                self._steps, self._filled = 0, present
            busy = np.float64(time.perf_counter() - began)
            self.line.send(STEP, layouts.step, StepReport(step, busy, np.float64(idle)))
        assert self.stopped is not None
        return self.stopped

    def answer(self, signal: StopRequest) -> np.ndarray | None:
        """The next action; None when the run is over."""
        began, warned = time.monotonic(), False
        while self.stopped is None:
            self.listen(signal)
            if self.snapshot is not None and self._filled is None:
                self.report()
            found = self.line.receive()
            if found is None:
                if not warned and time.monotonic() - began > WARN_SECONDS:
                    warned = True
                    phase = f"waiting for actions from rank {self.learner}"
                    self.watchdog.at(phase, self.state.sequence, armed=self._compiled, often=True)
                self.backoff.pause()
                continue
            self.backoff.reset()
            tag, buffer = found
            if tag == ACTION:
                self.watchdog.at("stepping", self.state.sequence, armed=self._compiled, often=True)
                self._compiled = True
                return buffer
            if tag == CARRY:
                assert self._filled is not None
                carry = jax.tree.map(np.array, self.line.layouts.carry.unpack(buffer))
                self.state = ActorState(self._filled._replace(carry=carry), self.state.sequence + 1)
                self._filled = None
        return None
