"""Checkpoints of a run that is divided into logical shards, written by many ranks, read by any number.

    checkpoints/shared/     what all ranks have in common, by rank 0, last: its manifest is the commit mark
    checkpoints/shard-07/   what belongs to one logical shard, by the rank that holds it

Each folder is a `Checkpointer`'s, so saves are atomic and write only what is new. A shard's folder does not
know who wrote it: a job of another size opens the folders of the shards it now holds and goes on. Shards keep
one checkpoint more than is kept of what is shared, because they are written before it counts.

All ranks need to see the folder: it lies on a shared file system.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.io.checkpoint import Checkpointer
from jaxrl_hpc.types import PyTree

T = TypeVar("T")


class Together(Protocol):
    """What ranks do together (comm.ranks.Ranks)."""

    def share(self, value: T) -> T: ...

    def everyone(self, *numbers: int) -> np.ndarray: ...

    def first_does(self, function: Callable[[], T]) -> T: ...

    def all_succeed(self, function: Callable[[], T]) -> T: ...


class ShardedCheckpointer:
    """Saves and restores the shards that this process holds, together with all other ranks."""

    def __init__(self, directory: Path, shards: Sequence[int], ranks: Together, keep: int = 2) -> None:
        self.directory, self.ranks = directory, ranks
        self._shared = Checkpointer(directory / "shared", keep)
        self._parts = {s: Checkpointer(shard_folder(directory, s), keep + 1) for s in shards}

    def save(self, step: int, shared: PyTree, parts: dict[int, PyTree], host: dict[str, Any]) -> None:
        """`parts` by logical shard; `shared` and `host` count as rank 0 gives them."""

        def write() -> None:
            for shard, checkpointer in self._parts.items():
                checkpointer.save(step, parts[shard], {"shard": shard})

        self.ranks.all_succeed(write)

        def commit() -> None:
            self._shared.save(step, shared, host)

        self.ranks.first_does(commit)

    def latest(self) -> int | None:
        """Step of the newest checkpoint that was committed, the same on all ranks."""
        return self.ranks.first_does(self._shared.latest)

    def restore(self, shared: PyTree, part: PyTree) -> tuple[int, PyTree, dict[int, PyTree], dict[str, Any]]:
        """The newest checkpoint of which every rank can read its shards: (step, shared, parts, host).

        `shared` and `part` are structures as for Checkpointer.restore.
        """
        problem = f"there is no checkpoint in {self.directory}"
        for step in reversed(self.ranks.first_does(self._shared.steps)):
            good, found = True, None
            try:
                found = self._read(step, shared, part)
            except UserError as error:
                good, problem = False, str(error)
            if self.ranks.everyone(good).all():
                assert found is not None
                return step, *found
        raise UserError(problem)

    def _read(
        self, step: int, shared: PyTree, part: PyTree
    ) -> tuple[PyTree, dict[int, PyTree], dict[str, Any]]:
        _, common, host = self._shared.restore(shared, step)
        return common, {s: c.restore(part, step)[1] for s, c in self._parts.items()}, host


def shard_folder(directory: Path, shard: int) -> Path:
    return directory / f"shard-{shard:04d}"
