"""Actors and learners connected by one-sided memory: ownership of windows, readers and order.

    rank of every learner   a slot with its parameters                       (versioned_slot.py)
    one rank per actor      a ring with the unrolls of that actor            (ring.py)
    rank 0                  a bit per actor: set while it takes part         (atomics.py)

A ring is in the memory of its actor, from which learners fetch, or of the actor's learner, into which the
actor writes and where polling is cheap. A learner reads these rings:

- `range`: its own actors', in turn. No two learners read the same ring.
- `random`: anyone's, in a new random order each time. Learners that read a ring at the same time copy the
  same unroll, and all but one discard it: collisions.
- with `help`: its own actors', and when these are empty, one unroll from a full ring of another learner,
  whose actor would have to wait; from any ring once its own actors have ended. Flags mark active actors.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

import numpy as np

from jaxrl_hpc.comm.buffers import aligned
from jaxrl_hpc.comm.rma.atomics import Bitmap
from jaxrl_hpc.comm.rma.progress_thread import ProgressThread
from jaxrl_hpc.comm.rma.ring import RingQueue, Rule
from jaxrl_hpc.comm.rma.selftest import examine
from jaxrl_hpc.comm.rma.versioned_slot import VersionedSlot
from jaxrl_hpc.comm.rma.window import NoWindow, Window
from jaxrl_hpc.comm.roles import Roles
from jaxrl_hpc.comm.transport import ActorSide, Arrival, BufferSizes, LearnerSide, Transport
from jaxrl_hpc.comm.two_sided import TWO_SIDED
from jaxrl_hpc.errors import UserError


class RmaOptions(NamedTuple):
    """How windows are used."""

    place: Literal["actor", "learner"]  # whose memory holds the rings
    rule: Rule = "block"  # on full
    selection: Literal["range", "random"] = "range"  # whose rings a learner reads: its own actors', anyone's
    help: bool = False  # a learner without unrolls takes from full rings of others
    one_sided: Literal["auto", "required", "never"] = "auto"
    thread: Literal["auto", "always", "never"] = "auto"  # that makes progress while a rank computes
    deadline_seconds: float = 60.0  # for a whole copy of parameters; 0: none

    def mixed(self, roles: Roles) -> bool:
        """Whether unrolls of one actor may go to several learners."""
        return roles.served > 1 and (self.selection == "random" or self.help)


def connect(roles: Roles, sizes: BufferSizes, options: RmaOptions) -> RmaStructures | None:
    """Collective: windows; None, with one line of explanation, if two-sided messages must be used."""
    if options.one_sided == "never":
        return None
    verdict = examine(roles.comm)
    problem = verdict.text
    if verdict.works:
        thread = {"always": True, "never": False, "auto": verdict.needs_thread}[options.thread]
        try:
            structures = RmaStructures(roles, sizes, options, thread)
        except NoWindow as error:  # on all ranks
            problem = str(error)
        else:
            if thread and verdict.needs_thread:
                when = "one-sided memory is reached only while its rank calls MPI here"
                _say(roles, f"{when}: each rank starts a thread for it")
            return structures
    if options.one_sided == "required":
        raise UserError(
            f"workflow.one_sided=required, but one-sided memory cannot be used here ({problem}): "
            "set it to auto to use two-sided messages instead"
        )
    text = f"one-sided memory cannot be used here ({problem}); using two-sided messages instead"
    _say(roles, text + _without(roles, options))
    return None


def _without(roles: Roles, options: RmaOptions) -> str:
    """Settings without effect on two-sided messages that differ from their defaults."""
    different = {
        f"workflow.when_full={options.rule}": options.rule != "block",
        f"workflow.selection={options.selection}": options.selection != "range" and roles.served > 1,
        "workflow.help=true": options.help and roles.served > 1,
    }
    named = [setting for setting, matters in different.items() if matters]
    return (
        f", for which {' and '.join(named)} {'has' if len(named) == 1 else 'have'} no effect" if named else ""
    )


def _say(roles: Roles, text: str) -> None:
    if roles.rank == 0:
        print(text, file=sys.stderr, flush=True)


class RmaStructures:
    """All structures, as one rank sees them. Made and closed by all ranks together."""

    def __init__(self, roles: Roles, sizes: BufferSizes, options: RmaOptions, thread: bool) -> None:
        self.roles, self.options = roles, options
        flags, slot = Bitmap.nbytes(roles.actors), VersionedSlot.nbytes(sizes.params)
        ring = RingQueue.nbytes(sizes.in_flight, sizes.message)
        most = max(len(roles.actors_of(learner)) for learner in range(roles.served))
        here = ring if options.place == "actor" else 0
        if roles.learns:
            here = slot + (most * ring if options.place == "learner" else 0)
        self.window = Window(roles.comm, flags + here)
        self.active = Bitmap(self.window, 0, 0, roles.actors)
        self.slots = [
            VersionedSlot(self.window, learner, flags, sizes.params) for learner in range(roles.served)
        ]
        self.rings: list[RingQueue] = []
        for actor in range(roles.actors):
            owner, offset = roles.rank_of(actor), flags
            if options.place == "learner":
                owner = roles.learner_of(actor)
                offset = flags + slot + roles.actors_of(owner).index(actor) * ring
            place = (owner, offset, sizes.in_flight, sizes.message, options.rule)
            self.rings.append(RingQueue(self.window, *place, alone=not options.mixed(roles)))
        self._thread = ProgressThread(roles.comm) if thread else None
        if self._thread:
            self._thread.__enter__()
        self.window.barrier()

    def close(self) -> None:
        self.window.barrier()
        if self._thread:
            self._thread.__exit__()
        self.window.free()


class WindowActor:
    """An actor's end (comm/transport.py)."""

    def __init__(self, structures: RmaStructures, sizes: BufferSizes) -> None:
        roles = structures.roles
        self._structures, self._number = structures, roles.number
        self._ring = structures.rings[roles.number]
        self._slot = structures.slots[roles.learner_of(roles.number)]
        self._params = aligned(sizes.params)
        self._active = False

    @property
    def lost(self) -> int:
        return self._ring.counts["rejected"] + self._ring.counts["dropped"]

    def newest(self) -> tuple[int, np.ndarray] | None:
        version = self._slot.read(self._params, self._structures.options.deadline_seconds or math.inf)
        return None if version is None else (version, self._params)

    def room(self) -> bool:
        return self._ring.rule != "block" or self._ring.room()

    def offer(self, message: np.ndarray) -> bool:
        if not self.room():
            return False
        self._ring.push(message)
        if not self._active:
            self._active = True
            self._structures.active.set(self._number)
        return True

    def close(self) -> None:
        self._structures.active.clear(self._number)
        self._structures.close()


class WindowLearner:
    """A learner's end (comm/transport.py)."""

    def __init__(self, structures: RmaStructures) -> None:
        roles = structures.roles
        self._structures, self._options = structures, structures.options
        self._slot = structures.slots[roles.rank] if roles.rank < roles.served else None
        self._own = roles.actors_of(roles.rank)
        self._others = [a for a in range(roles.actors) if a not in self._own] if self._own else []
        self._turn = 0
        self._rng = np.random.default_rng(roles.rank)
        self.mixed = self._options.mixed(roles)
        self.gone: Callable[[int], int] | None = self._gone if self.mixed else None
        self.helped = 0  # unrolls taken for other learners
        self._begun = False  # one of its own actors has taken part

    @property
    def counts(self) -> dict[str, int]:
        if not self.mixed:
            return {}
        collisions = sum(ring.counts["collisions"] for ring in self._structures.rings)
        return {"collisions": collisions, "helped": self.helped}

    def publish(self, version: int, params: np.ndarray) -> None:
        assert self._slot is not None
        self._slot.write(params, version)

    def drain(self, limit: int) -> list[Arrival]:
        if self._slot is not None:
            self._slot.settle()
        found: list[Arrival] = []
        rings = self._structures.rings
        limit = min(limit, len(rings) * rings[0].capacity)  # so that it ends, however fast actors are
        while len(found) < limit:
            before = len(found)
            self._round(found, limit)
            if len(found) == before:
                break
        if not found and limit > 0 and self.mixed and self._options.help:
            self._help(found)
        return found

    def waiting(self) -> int:
        return sum(self._structures.rings[actor].seen for actor in self._own)

    def _gone(self, actor: int) -> int:
        return self._structures.rings[actor].gone()

    def _round(self, found: list[Arrival], limit: int) -> None:
        """At most one unroll from every ring."""
        for actor in self._order():
            if len(found) == limit:
                return
            self._take(actor, found)

    def _order(self) -> Iterable[int]:
        if self.mixed and self._options.selection == "random":
            return map(int, self._rng.permutation(self._own + self._others))
        self._turn = (self._turn + 1) % max(len(self._own), 1)
        return self._own[self._turn :] + self._own[: self._turn]

    def _take(self, actor: int, found: list[Arrival]) -> bool:
        item = self._structures.rings[actor].take()
        if item is not None:
            found.append(Arrival(actor, item.data))
            self._begun = self._begun or actor in self._own
        return item is not None

    def _help(self, found: list[Arrival]) -> None:
        active = self._structures.active.all()
        own = bool(active[self._own].any())
        self._begun = self._begun or own
        ended = self._begun and not own
        for actor in self._rng.permutation(self._others).tolist():
            ring = self._structures.rings[actor]
            wanted = ended or (active[actor] and ring.waiting() >= ring.capacity)
            if wanted and self._take(actor, found):
                self.helped += 1
                return

    def close(self) -> None:
        self._structures.close()


def one_sided(options: RmaOptions) -> Transport:
    """Windows where they work, two-sided messages elsewhere."""

    def actor(roles: Roles, sizes: BufferSizes) -> ActorSide:
        structures = connect(roles, sizes, options)
        return TWO_SIDED.actor(roles, sizes) if structures is None else WindowActor(structures, sizes)

    def learner(roles: Roles, sizes: BufferSizes) -> LearnerSide:
        structures = connect(roles, sizes, options)
        return TWO_SIDED.learner(roles, sizes) if structures is None else WindowLearner(structures)

    return Transport(actor, learner)
