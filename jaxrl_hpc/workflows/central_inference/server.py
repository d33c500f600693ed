"""The server of central inference: receives steps, answers with actions in batches, returns whole unrolls.

It is the learner's end of a transport (comm/transport.py): `drain` does all pending work, `publish` sets the
parameters that it acts with. A batch is answered when all ranks that can be in it have arrived (or as many as
requested), or when the first of them has waited long enough.

A rank that has completed an unroll gets no action while `in_flight` of its unrolls wait for the learner; in
lock-step not before its last one has been learned from. The order of answers can be recorded and replayed: a
batch is then answered with the same parameters and the same ranks in it.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from pathlib import Path
from typing import NamedTuple, TextIO

import jax
import numpy as np

from jaxrl_hpc.comm.buffers import BufferLayout, aligned
from jaxrl_hpc.comm.messaging import Outbox
from jaxrl_hpc.comm.roles import Roles
from jaxrl_hpc.comm.transport import Arrival
from jaxrl_hpc.comm.waiting import Backoff
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.types import EnvStep, PyTree
from jaxrl_hpc.workflows.actor_learner.messages import ActorPrograms, Header, UnrollMessage
from jaxrl_hpc.workflows.central_inference.server_state import CopyState, InferencePrograms

HELLO, STEP, ACTION, CARRY, END = 0, 1, 2, 3, 4  # tags


class Hello(NamedTuple):
    known: CopyState
    sequence: np.int64  # unrolls made before


class StepReport(NamedTuple):
    step: EnvStep
    busy: np.float64  # seconds that the rank worked since the last one
    idle: np.float64  # seconds that it waited


class MessageLayouts(NamedTuple):
    """Layouts of all messages."""

    hello: BufferLayout
    step: BufferLayout
    action: BufferLayout
    carry: BufferLayout


class InferenceRules(NamedTuple):
    batch: int  # ranks answered at once; 0: all
    seconds: float  # that the first one waits
    in_flight: int
    lockstep: bool


class InferenceServer:
    """One server and its environment ranks."""

    gone = None

    def __init__(
        self,
        acting: ActorPrograms,
        inference: InferencePrograms,
        layouts: MessageLayouts,
        roles: Roles,
        rules: InferenceRules,
        known: PyTree,
    ) -> None:
        from mpi4py import MPI

        self._mpi, self._status = MPI, MPI.Status()
        self.comm = roles.comm.Clone()
        self.acting, self.layouts, self.rules, self.roles = acting, layouts, rules, roles
        self.actors = roles.actors_of(roles.rank)
        self.slot_of = {actor: slot for slot, actor in enumerate(self.actors)}
        shapes = (_shapes(acting.params), known)
        self.slots = inference.empty(max(1, len(self.actors)), *shapes) if self.actors else None
        self._greet = jax.jit(inference.greet, donate_argnums=0)
        self._conclude = jax.jit(inference.conclude, donate_argnums=1)
        self._choose = jax.jit(inference.choose, donate_argnums=1)
        self._finish = jax.jit(inference.finish, donate_argnums=1)
        self.length = inference.length
        self.params: PyTree = None
        self.version = -1
        self._came: dict[int, StepReport] = {}  # actor -> unprocessed step
        self._first = 0.0  # arrival of the first of them
        self._open: dict[int, None] = {}  # actors whose next action is to be chosen, in order
        self._steps = dict.fromkeys(self.actors, 0)  # of the present unroll
        self._sequence = dict.fromkeys(self.actors, 0)
        self._began = dict.fromkeys(self.actors, 0)  # version that chose the unroll's first action
        self._times = {actor: np.zeros(2) for actor in self.actors}
        self._ready: deque[Arrival] = deque()
        self._full: Counter[int] = Counter()  # unrolls of an actor in there
        self._outbox = Outbox(self.comm)
        self._ended: set[int] = set()
        self._record: TextIO | None = None
        self._replayed: deque[tuple[int, list[int]]] | None = None
        self._counts = {"inference_batches": 0, "inference_answers": 0, "inference_microseconds": 0}

    # -- what a learner's end does -------------------------------------------

    @property
    def counts(self) -> dict[str, int]:
        return dict(self._counts)

    def publish(self, version: int, params: PyTree) -> None:
        """Keep the parameters; nothing is sent."""
        self.version, self.params = version, params

    def waiting(self) -> int:
        return len(self._ready)

    def drain(self, limit: int) -> list[Arrival]:
        if self.params is not None:
            self._replay() if self._replayed is not None else self._serve()
        found: list[Arrival] = []
        while self._ready and len(found) < limit:
            arrival = self._ready.popleft()
            self._full[arrival.actor] -= 1
            found.append(arrival)
        return found

    def keep_order(self, record: Path | None, replayed: Path | None) -> None:
        """Record which ranks are answered together, or answer as recorded."""
        if replayed is not None:
            if not replayed.is_file():
                raise UserError(f"run.replay_schedule: there is no {replayed}")
            lines = [line.split(",") for line in replayed.read_text().splitlines()]
            self._replayed = deque((int(v), [int(a) for a in actors.split()]) for v, actors in lines)
        elif record is not None:
            self._record = record.open("w")

    # -- answering -----------------------------------------------------------

    def _serve(self) -> None:
        self._receive()
        possible = len(self.actors) - len([a for a in self._open if not self._allowed(a)])
        wanted = min(self.rules.batch or possible, possible)
        due = self._came and time.perf_counter() - self._first >= self.rules.seconds
        if len(self._came) + len(self._open) >= wanted or due:
            began = time.perf_counter()
            self._look()
            self._answer([actor for actor in self._open if self._allowed(actor)])
            self._counts["inference_microseconds"] += round(1e6 * (time.perf_counter() - began))

    def _replay(self) -> None:
        """Answer all batches that were recorded with the present parameters."""
        backoff = Backoff()
        assert self._replayed is not None
        while True:
            self._receive()
            self._look()
            if not self._replayed or self._replayed[0][0] != self.version:
                return
            if all(actor in self._open for actor in self._replayed[0][1]):
                self._answer(self._replayed.popleft()[1])
            else:
                backoff.pause()

    def _allowed(self, actor: int) -> bool:
        if self._steps[actor]:
            return True
        if self.rules.lockstep and self.version < self._sequence[actor]:
            return False
        return self._full[actor] < self.rules.in_flight

    def _receive(self) -> None:
        while self.comm.Iprobe(source=self._mpi.ANY_SOURCE, status=self._status):
            rank, tag = self._status.Get_source(), self._status.Get_tag()
            buffer = aligned(self._status.Get_count(self._mpi.BYTE))
            self.comm.Recv(buffer, source=rank, tag=tag)
            actor = rank - self.roles.learners
            if tag == HELLO:
                greeting = self.layouts.hello.unpack(buffer)
                self.slots = self._greet(self.slots, np.int32(self.slot_of[actor]), greeting.known)
                self._sequence[actor], self._steps[actor] = int(greeting.sequence), 0
                self._open[actor] = None
            elif tag == STEP:
                if not self._came:
                    self._first = time.perf_counter()
                self._came[actor] = self.layouts.step.unpack(buffer)
            else:
                self._ended.add(actor)

    def _look(self) -> None:
        """Turn the steps received into transitions, and complete unrolls."""
        actors = list(self._came)
        if not actors:
            return
        padded = actors + actors[:1] * (_padded(len(actors)) - len(actors))
        steps = jax.tree.map(lambda *x: np.stack(x), *(self._came[actor].step for actor in padded))
        self.slots = self._conclude(self.params, self.slots, self._index(actors), steps)
        for actor in actors:
            came = self._came.pop(actor)
            self._times[actor] += (float(came.busy), float(came.idle))
            self._steps[actor] += 1
            self._open[actor] = None
            if self._steps[actor] == self.length:
                self._complete(actor)

    def _complete(self, actor: int) -> None:
        number = np.int32(self.slot_of[actor])
        self.slots, (ended, trajectory, rated, carry) = self._finish(self.params, self.slots, number)
        busy, idle = self._times[actor]
        header = Header(
            np.int64(actor),
            np.int64(self._sequence[actor]),
            np.int64(self._began[actor]),
            np.float64(busy),
            np.float64(idle),
        )
        buffer = self.acting.message.empty()
        self.acting.message.pack(UnrollMessage(header, ended, trajectory, rated), buffer)
        self._times[actor] = np.zeros(2)
        self._sequence[actor] += 1
        self._steps[actor] = 0
        self._ready.append(Arrival(actor, buffer))
        self._full[actor] += 1
        self._send(actor, CARRY, self.layouts.carry, carry)

    def _answer(self, actors: list[int]) -> None:
        if not actors:
            return
        self.slots, actions = self._choose(self.params, self.slots, self._index(actors))
        for actor, action in zip(actors, np.asarray(actions), strict=False):
            del self._open[actor]
            if not self._steps[actor]:
                self._began[actor] = self.version
            self._send(actor, ACTION, self.layouts.action, action)
        self._counts["inference_batches"] += 1
        self._counts["inference_answers"] += len(actors)
        if self._record:
            self._record.write(f"{self.version},{' '.join(map(str, actors))}\n")

    def _index(self, actors: list[int]) -> np.ndarray:
        """Rows of a batch, padded to a power of two: few programs serve all sizes."""
        index = np.full(_padded(len(actors)), len(self.actors), np.int32)
        index[: len(actors)] = [self.slot_of[actor] for actor in actors]
        return index

    def _send(self, actor: int, tag: int, packing: BufferLayout, tree: PyTree) -> None:
        buffer = packing.empty()
        packing.pack(tree, buffer)
        self._outbox.send(self.roles.rank_of(actor), buffer, tag)

    def close(self) -> None:
        """Wait for the end marks of all ranks."""
        backoff = Backoff()
        for actor in self.actors:
            self._outbox.send(self.roles.rank_of(actor), np.zeros(0, np.uint8), END)
        while len(self._ended) < len(self.actors) or not self._outbox.empty():
            self._receive()
            backoff.pause()
        if self._record:
            self._record.close()


def _padded(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _shapes(packing: BufferLayout) -> PyTree:
    """The tree that a layout is for, as shapes; no typed keys in it."""
    leaves = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in packing.leaves]
    return jax.tree.unflatten(packing.structure, leaves)
