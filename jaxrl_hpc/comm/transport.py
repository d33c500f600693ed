"""The interface of transports between actors and learners.

    actor:  room() → newest() → act → offer(message)     learner:  drain() → learn → publish(version, params)

A transport moves two kinds of raw buffers of fixed size: messages (an unroll with its header) from actors to
learners, and parameters with a version from learners to actors. Nothing here waits: a side that finds nothing
polls again, and the workflow (workflows/actor_learner/) decides for how long. Control messages (start, stop,
snapshots, parameters of replayed schedules) use `messaging.Control`, which is the same for all transports.

Every transport guarantees:
- messages of one actor are drained in the order in which they were offered, each at most once;
- at any time, messages taken by `offer` = drained + `lost` + in flight, exactly; nothing is torn;
- `newest` never returns to an older version, and its value is whole;
- an actor can be ahead of its learner by a bounded number of messages (`BufferSizes.in_flight`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from jaxrl_hpc.comm.messaging import ControlMessage, Kind
from jaxrl_hpc.comm.roles import Roles


class BufferSizes(NamedTuple):
    """Sizes of a run's buffers; the same on all ranks."""

    message: int  # bytes of an unroll with its header
    params: int  # bytes of an actor's parameters
    in_flight: int  # messages of one actor that may be in flight before it has to wait


class Arrival(NamedTuple):
    """A message that has come."""

    actor: int  # its number among actors, not its rank
    message: np.ndarray  # [BufferSizes.message] uint8, never written to again by the transport


class ActorSide(Protocol):
    """One actor's end."""

    def newest(self) -> tuple[int, np.ndarray] | None:
        """(version, [BufferSizes.params] uint8) if something newer than last time was published, else None.

        The buffer stays as it is until the next call.
        """
        ...

    def room(self) -> bool:
        """Whether `offer` would take a message now. An actor waits for room before it acts, not after, so
        that its unroll is made with recent parameters."""
        ...

    def offer(self, message: np.ndarray) -> bool:
        """Take a copy of a message [BufferSizes.message] uint8. False: no room, nothing was done.

        A transport that rejects or drops the oldest when full takes it and counts what is `lost`.
        """
        ...

    @property
    def lost(self) -> int:
        """Messages taken since the beginning that no learner will ever drain."""
        ...

    def close(self) -> None:
        """Collective, after the learners have drained all that they need."""
        ...


class LearnerSide(Protocol):
    """One learner's end."""

    gone: Callable[[int], int] | None
    # None: all messages of an actor come to its own learner. Otherwise they may go to any, and this tells how
    # many of an actor's in this job are no longer in flight: drained by any learner, or lost

    @property
    def counts(self) -> dict[str, int]:
        """Counters since the start, for metrics; the same names at all learners."""
        ...

    def publish(self, version: int, params: np.ndarray) -> None:
        """Send [BufferSizes.params] uint8 to its actors; versions increase. An actor may skip some of them.

        The transport keeps the array as long as needed; it must not be written to again.
        """
        ...

    def drain(self, limit: int) -> list[Arrival]:
        """At most `limit` messages that have arrived. The others stay: backpressure on their actors.

        Called often, so that the transport makes progress here.
        """
        ...

    def waiting(self) -> int:
        """Approximate number of messages that have arrived and are not drained; a metric."""
        ...

    def close(self) -> None:
        """Collective."""
        ...


class ControlSide(Protocol):
    """Rare, small messages beside a transport: `messaging.Control`, or the transport's own."""

    def send(
        self, rank: int, kind: Kind, number: int = 0, extra: int = 0, payload: np.ndarray | None = None
    ) -> None: ...

    def receive(self) -> ControlMessage | None:
        """The next message, if one is complete; those of one sender stay in order."""
        ...


class Transport(NamedTuple):
    """How a workflow's ranks are connected. Both are called at the same time by all ranks of their role."""

    actor: Callable[[Roles, BufferSizes], ActorSide]
    learner: Callable[[Roles, BufferSizes], LearnerSide]
