"""Checkpoints of actors and learners: a consistent snapshot of the whole job.

Learners' states (checkpoint/sharded.py), the actors' environment copies by actor number, and the unrolls that
were sent and not yet learned from. With fewer actors than before, the states of the others are kept for
later; new actors start fresh copies with their own keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl_hpc.checkpoint.checkpointer import Checkpointer
from jaxrl_hpc.checkpoint.sharded import ShardedCheckpointer
from jaxrl_hpc.comm.ranks import Ranks
from jaxrl_hpc.types import PyTree
from jaxrl_hpc.workflows.actor_learner.messages import ActorSnapshot


class ActorLearnerStore:
    """A `Store`.

    Args:
      ranks: the learners.
      directory: of the run's checkpoints.
      keep: how many to keep.
      snapshot: returns actors' states and messages in flight.
      resumed: called with those of a checkpoint, and the seconds of the run before it.
      inspects: whether to restore only learners, for inspection.
    """

    def __init__(
        self,
        ranks: Ranks,
        directory: Path,
        keep: int,
        snapshot: Callable[[], ActorSnapshot],
        resumed: Callable[[ActorSnapshot | None, float], None],
        *,
        inspects: bool,
    ) -> None:
        self.ranks, self._snapshot, self._resumed, self._inspects = ranks, snapshot, resumed, inspects
        self._learners = ShardedCheckpointer(directory, [ranks.rank], ranks, keep)
        self._actors = Checkpointer(directory / f"actors-{ranks.rank:04d}", keep + 1)

    def latest(self) -> int | None:
        return self._learners.latest()

    def save(self, step: int, states: Sequence[PyTree], host: dict[str, Any]) -> None:
        """Actors first: the learners' manifest is the commit mark."""
        (state,) = states
        fields = self._snapshot()._asdict()
        arrays = {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}
        numbers = {name: int(value) for name, value in fields.items() if name not in arrays}
        self.ranks.all_succeed(lambda: self._actors.save(step, arrays, numbers))
        host = host | {"actors": True}  # so that a missing snapshot is damage
        self._learners.save(step, state._replace(replay=()), {self.ranks.rank: state.replay}, host)

    def restore(self, shapes: Sequence[PyTree]) -> tuple[int, list[PyTree], dict[str, Any]]:
        (shape,) = shapes
        actors: ActorSnapshot | None = None

        def read_actors(step: int) -> None:
            nonlocal actors
            if not self._inspects:
                _, leaves, numbers = self._actors.load(step)
                fields = ActorSnapshot._fields
                arrays = {name: leaves[f"['{name}']"] for name in fields if f"['{name}']" in leaves}
                actors = ActorSnapshot(**arrays, **numbers)

        step, shared, parts, host = self._learners.restore(
            shape._replace(replay=()), shape.replay, also=read_actors
        )
        self._resumed(actors, host["wall_seconds"])
        return step, [shared._replace(replay=parts[self.ranks.rank])], host
