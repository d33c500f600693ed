"""Checkpoints of a parameter server, made between chunks: what is kept for all, each worker by its number.

With more workers than before, the new ones start fresh copies from the present parameters; the state of
workers that are not there any more is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxrl_hpc.checkpoint.sharded import ShardedCheckpointer
from jaxrl_hpc.comm.ranks import Ranks
from jaxrl_hpc.types import PyTree
from jaxrl_hpc.workflows.parameter_server.worker import CentralState, WorkerState


class ParameterServerStore:
    """A `Store`.

    Args:
      ranks: the workers.
      directory: of the run's checkpoints.
      keep: how many to keep.
      new_worker: makes one that the checkpoint does not have.
    """

    def __init__(
        self, ranks: Ranks, directory: Path, keep: int, new_worker: Callable[[CentralState], WorkerState]
    ) -> None:
        self.ranks, self._new_worker = ranks, new_worker
        self._files = ShardedCheckpointer(directory, [ranks.rank], ranks, keep)

    def latest(self) -> int | None:
        return self._files.latest()

    def save(self, step: int, states: Sequence[PyTree], host: dict[str, Any]) -> None:
        (state,) = states
        self._files.save(step, state.shared, {self.ranks.rank: state.own}, host)

    def restore(self, shapes: Sequence[PyTree]) -> tuple[int, list[PyTree], dict[str, Any]]:
        (shape,) = shapes
        step, shared, parts, host = self._files.restore(shape.shared, shape.own, new_parts=True)
        found = parts[self.ranks.rank]
        own = self.ranks.all_succeed(lambda: self._new_worker(shared) if found is None else found)
        return step, [shape._replace(shared=shared, own=own)], host
