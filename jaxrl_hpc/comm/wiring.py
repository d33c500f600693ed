"""The windows of a job of actors and learners: parameters, unrolls and flags in memory that all can reach.

    rank of every learner   a slot with its parameters                       (comm/slot.py)
    one rank per actor      a ring with the unrolls of that actor            (comm/ring.py)
    rank 0                  a bit per actor: set while it takes part         (comm/bitmap.py)

A ring lies in the memory of its actor, from which learners fetch, or of its actor's learner, into which the
actor writes and where looking for something new costs nothing.
"""

from __future__ import annotations

import math
import sys
from typing import Literal, NamedTuple

import numpy as np

from jaxrl_hpc.comm.bitmap import Bitmap
from jaxrl_hpc.comm.channel import Sizes
from jaxrl_hpc.comm.one_sided import examine
from jaxrl_hpc.comm.packing import aligned
from jaxrl_hpc.comm.progress import ProgressThread
from jaxrl_hpc.comm.ring import Ring, Rule
from jaxrl_hpc.comm.roles import Roles
from jaxrl_hpc.comm.slot import Slot
from jaxrl_hpc.comm.windows import NoWindow, Window
from jaxrl_hpc.errors import UserError


class Options(NamedTuple):
    """How windows are used."""

    place: Literal["actor", "learner"]  # whose memory rings lie in
    rule: Rule = "block"  # on full
    selection: Literal["range", "random"] = "range"  # whose rings a learner reads: its own actors', anyone's
    help: bool = False  # a learner without unrolls takes from full rings of others
    one_sided: Literal["auto", "required", "never"] = "auto"
    thread: Literal["auto", "always", "never"] = "auto"  # that makes progress while a rank computes
    deadline_seconds: float = 60.0  # for a whole copy of parameters; 0: none

    def mixed(self, roles: Roles) -> bool:
        """Whether unrolls of one actor may go to several learners."""
        return roles.served > 1 and (self.selection == "random" or self.help)


def connect(roles: Roles, sizes: Sizes, options: Options) -> Wiring | None:
    """Collective: windows; None, and one line that says so, if two-sided messages have to do."""
    if options.one_sided == "never":
        return None
    verdict = examine(roles.comm)
    problem = verdict.text
    if verdict.works:
        thread = {"always": True, "never": False, "auto": verdict.needs_thread}[options.thread]
        try:
            wiring = Wiring(roles, sizes, options, thread)
        except NoWindow as error:  # on all ranks
            problem = str(error)
        else:
            if thread and verdict.needs_thread:
                when = "one-sided memory is reached only while its rank calls MPI here"
                _say(roles, f"{when}: each rank starts a thread for it")
            return wiring
    if options.one_sided == "required":
        raise UserError(
            f"workflow.one_sided=required, but one-sided memory cannot be used here ({problem}): "
            "set it to auto to go on with two-sided messages"
        )
    text = f"one-sided memory cannot be used here ({problem}); going on with two-sided messages"
    _say(roles, text + _without(roles, options))
    return None


def _without(roles: Roles, options: Options) -> str:
    """Settings that messages know nothing of, and that would have made a difference."""
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


class Wiring:
    """All structures, as one rank sees them. Made and closed by all ranks together."""

    def __init__(self, roles: Roles, sizes: Sizes, options: Options, thread: bool) -> None:
        self.roles, self.options = roles, options
        flags, slot = Bitmap.nbytes(roles.actors), Slot.nbytes(sizes.params)
        ring = Ring.nbytes(sizes.in_flight, sizes.message)
        most = max(len(roles.actors_of(learner)) for learner in range(roles.served))
        here = ring if options.place == "actor" else 0
        if roles.learns:
            here = slot + (most * ring if options.place == "learner" else 0)
        self.window = Window(roles.comm, flags + here)
        self.active = Bitmap(self.window, 0, 0, roles.actors)
        self.slots = [Slot(self.window, learner, flags, sizes.params) for learner in range(roles.served)]
        self.rings: list[Ring] = []
        for actor in range(roles.actors):
            owner, offset = roles.rank_of(actor), flags
            if options.place == "learner":
                owner = roles.learner_of(actor)
                offset = flags + slot + roles.actors_of(owner).index(actor) * ring
            place = (owner, offset, sizes.in_flight, sizes.message, options.rule)
            self.rings.append(Ring(self.window, *place, alone=not options.mixed(roles)))
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
    """An actor's end (comm/channel.py)."""

    def __init__(self, wiring: Wiring, sizes: Sizes) -> None:
        roles = wiring.roles
        self._wiring, self._number = wiring, roles.number
        self._ring = wiring.rings[roles.number]
        self._slot = wiring.slots[roles.learner_of(roles.number)]
        self._params = aligned(sizes.params)
        self._active = False

    @property
    def lost(self) -> int:
        return self._ring.counts["rejected"] + self._ring.counts["dropped"]

    def newest(self) -> tuple[int, np.ndarray] | None:
        version = self._slot.read(self._params, self._wiring.options.deadline_seconds or math.inf)
        return None if version is None else (version, self._params)

    def room(self) -> bool:
        return self._ring.rule != "block" or self._ring.room()

    def offer(self, message: np.ndarray) -> bool:
        if not self.room():
            return False
        self._ring.push(message)
        if not self._active:
            self._active = True
            self._wiring.active.set(self._number)
        return True

    def close(self) -> None:
        self._wiring.active.clear(self._number)
        self._wiring.close()
