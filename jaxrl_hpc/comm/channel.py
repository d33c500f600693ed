"""Between actors and learners: what a transport does, whatever it is made of.

    actor:  room() → newest() → act → offer(message)     learner:  drain() → learn → publish(version, params)

A transport moves two kinds of raw buffers of fixed size: messages (an unroll with its header) from actors to
learners, and parameters with a version from learners to actors. Nothing here waits: a side that finds nothing
comes again, and the engine (workflows/acting.py, workflows/arrivals.py) decides how long. Commands, snapshots
and the parameters of replayed schedules do not pass here but through `control.py`, which is the same for all.

What every transport promises:
- messages of one actor are drained in the order in which they were offered, each at most once;
- after any time, messages taken by `offer` = drained + `lost` + under way, exactly; nothing is torn;
- `newest` never goes back to an older version, and what it gives is whole;
- an actor can be ahead of its learner by a bounded number of messages (`Sizes.in_flight`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from jaxrl_hpc.comm.roles import Roles


class Sizes(NamedTuple):
    """What the buffers of a run measure; the same on all ranks."""

    message: int  # bytes of an unroll with its header
    params: int  # bytes of an actor's parameters
    in_flight: int  # messages of one actor that may be under way before it has to wait


class Arrival(NamedTuple):
    """A message that has come."""

    actor: int  # its number among actors, not its rank
    message: np.ndarray  # [Sizes.message] uint8, never written to again by the transport


class ActorSide(Protocol):
    """One actor's end."""

    def newest(self) -> tuple[int, np.ndarray] | None:
        """(version, [Sizes.params] uint8) if something newer than last time was published, else None.

        The buffer stays as it is until the next call.
        """
        ...

    def room(self) -> bool:
        """Whether `offer` would take a message now. An actor waits for it before it acts, not after: so an
        unroll that has to wait was at least made with parameters that were new when its turn came."""
        ...

    def offer(self, message: np.ndarray) -> bool:
        """Takes a copy of a message [Sizes.message] uint8. False: no room now, and nothing has happened.

        A transport whose rule on full is to reject or to drop the oldest takes it and counts what is `lost`.
        """
        ...

    @property
    def lost(self) -> int:
        """Messages taken since the beginning that no learner will ever drain."""
        ...

    def close(self) -> None:
        """Together with all ranks, after the learners have drained all they want."""
        ...


class LearnerSide(Protocol):
    """One learner's end."""

    gone: Callable[[int], int] | None
    # None: all messages of an actor come to its own learner. Otherwise they may go to any, and this tells how
    # many of an actor's in this job are not under way any more: drained by any learner, or lost

    @property
    def counts(self) -> dict[str, int]:
        """What has happened since the beginning, for metrics; the same names at all learners."""
        ...

    def publish(self, version: int, params: np.ndarray) -> None:
        """Gives [Sizes.params] uint8 to its actors; versions rise. An actor may never see some of them.

        The transport keeps the array as long as it needs it; nobody writes to it any more.
        """
        ...

    def drain(self, limit: int) -> list[Arrival]:
        """At most `limit` messages that have come; the others stay where they are and hold their actors back.

        Called often: whatever needs progress makes it here.
        """
        ...

    def waiting(self) -> int:
        """About how many messages have come and were not drained; a metric."""
        ...

    def close(self) -> None:
        """Together with all ranks."""
        ...


class Transport(NamedTuple):
    """How a workflow's ranks are connected. Both are called at the same time by all ranks of their role."""

    actor: Callable[[Roles, Sizes], ActorSide]
    learner: Callable[[Roles, Sizes], LearnerSide]
