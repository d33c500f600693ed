"""Checkpoints of a state of which one field belongs to the rank and all others are the same on every rank.

The shared part is saved once, by rank 0; the field by each rank (checkpoint/sharded.py), for all seeds at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxrl_hpc.checkpoint.sharded import ShardedCheckpointer
from jaxrl_hpc.comm.ranks import Ranks
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.types import PyTree


class RankStore:
    """A `Store` of states that are NamedTuples.

    Args:
      ranks: those that learn.
      directory: of the run's checkpoints.
      keep: how many to keep.
      own: the field that belongs to the rank.
      new: (state without the field) -> the field, for a rank that the checkpoint does not have. None: a run
        continues with the same number of ranks, or is only inspected.
      inspects: whether the state is only inspected, not trained.
    """

    def __init__(
        self,
        ranks: Ranks,
        directory: Path,
        keep: int,
        own: str,
        *,
        new: Callable[[PyTree], PyTree] | None = None,
        inspects: bool = False,
    ) -> None:
        self.ranks, self._own, self._new, self._inspects = ranks, own, new, inspects
        self._files = ShardedCheckpointer(directory, [ranks.rank], ranks, keep)

    def _shared(self, states: Sequence[PyTree]) -> list[PyTree]:
        return [state._replace(**{self._own: ()}) for state in states]

    def _parts(self, states: Sequence[PyTree]) -> list[PyTree]:
        return [getattr(state, self._own) for state in states]

    def latest(self) -> int | None:
        return self._files.latest()

    def save(self, step: int, states: Sequence[PyTree], host: dict[str, Any]) -> None:
        self._files.save(step, self._shared(states), {self.ranks.rank: self._parts(states)}, host)

    def restore(self, shapes: Sequence[PyTree]) -> tuple[int, list[PyTree], dict[str, Any]]:
        step, shared, parts, host = self._files.restore(
            self._shared(shapes), self._parts(shapes), new_parts=True
        )
        before, found, new = host["parts"], parts[self.ranks.rank], self._new
        if new is None and not self._inspects and before != self.ranks.size:
            raise UserError(f"this run has the states of {before} rank(s): resume it with the same number")
        if new is not None:
            make = new
            found = self.ranks.all_succeed(lambda: found or [make(state) for state in shared])
        states = [state._replace(**{self._own: part}) for state, part in zip(shared, found, strict=True)]
        return step, states, host
