"""A learner's end of the windows: whose rings it reads, and in which order.

- `range`: its own actors', in turn. No two learners read the same ring.
- `random`: anyone's, in an order drawn anew each time. Learners that meet at a ring copy the same unroll, and
  all but one of them for nothing: collisions.
- with `help`: its own actors', and when there is nothing in them, one unroll from a full ring of another
  learner, whose actor would have to wait; from any ring once its own actors have ended, since nothing will
  come from them. Flags tell which actors take part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from jaxrl_hpc.comm.channel import ActorSide, Arrival, LearnerSide, Sizes, Transport
from jaxrl_hpc.comm.roles import Roles
from jaxrl_hpc.comm.two_sided import TWO_SIDED
from jaxrl_hpc.comm.wiring import Options, WindowActor, Wiring, connect


class WindowLearner:
    """A learner's end (comm/channel.py)."""

    def __init__(self, wiring: Wiring) -> None:
        roles = wiring.roles
        self._wiring, self._options = wiring, wiring.options
        self._slot = wiring.slots[roles.rank] if roles.rank < roles.served else None
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
        collisions = sum(ring.counts["collisions"] for ring in self._wiring.rings)
        return {"collisions": collisions, "helped": self.helped}

    def publish(self, version: int, params: np.ndarray) -> None:
        assert self._slot is not None
        self._slot.write(params, version)

    def drain(self, limit: int) -> list[Arrival]:
        if self._slot is not None:
            self._slot.settle()
        found: list[Arrival] = []
        rings = self._wiring.rings
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
        return sum(self._wiring.rings[actor].seen for actor in self._own)

    def _gone(self, actor: int) -> int:
        return self._wiring.rings[actor].gone()

    def _round(self, found: list[Arrival], limit: int) -> None:
        """At most one unroll from every ring."""
        for actor in self._order():
            if len(found) == limit:
                return
            self._take(actor, found)

    def _order(self) -> Iterable[int]:
        if self.mixed and self._options.selection == "random":
            return self._rng.permutation(self._own + self._others).tolist()
        self._turn = (self._turn + 1) % max(len(self._own), 1)
        return self._own[self._turn :] + self._own[: self._turn]

    def _take(self, actor: int, found: list[Arrival]) -> bool:
        item = self._wiring.rings[actor].take()
        if item is not None:
            found.append(Arrival(actor, item.data))
            self._begun = self._begun or actor in self._own
        return item is not None

    def _help(self, found: list[Arrival]) -> None:
        active = self._wiring.active.all()
        own = bool(active[self._own].any())
        self._begun = self._begun or own
        ended = self._begun and not own
        for actor in self._rng.permutation(self._others).tolist():
            ring = self._wiring.rings[actor]
            wanted = ended or (active[actor] and ring.waiting() >= ring.capacity)
            if wanted and self._take(actor, found):
                self.helped += 1
                return

    def close(self) -> None:
        self._wiring.close()


def one_sided(options: Options) -> Transport:
    """Windows where they work, two-sided messages elsewhere."""

    def actor(roles: Roles, sizes: Sizes) -> ActorSide:
        wiring = connect(roles, sizes, options)
        return TWO_SIDED.actor(roles, sizes) if wiring is None else WindowActor(wiring, sizes)

    def learner(roles: Roles, sizes: Sizes) -> LearnerSide:
        wiring = connect(roles, sizes, options)
        return TWO_SIDED.learner(roles, sizes) if wiring is None else WindowLearner(wiring)

    return Transport(actor, learner)
