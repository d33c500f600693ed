"""Checkpoints of a run that is divided into logical shards, written and read by any number of ranks.

    checkpoints/shared/     what all ranks have in common, by rank 0, last: its manifest is the commit mark
    checkpoints/shard-07/   what belongs to one logical shard, by the rank that holds it

Each folder is a `Checkpointer`'s, so saves are atomic and write only what is new. A shard's folder is
independent of the rank that wrote it: a job of another size opens the folders of the shards it holds and
continues. Shards keep one more checkpoint than the shared part, because they are written before it is
committed. The shared part records the number of parts (`parts` in `host`), so that a missing one is detected
as damage.

All ranks need to see the folder: it lies on a shared file system.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from jaxrl_hpc.checkpoint.blocks import NoGoodCheckpoint
from jaxrl_hpc.checkpoint.checkpointer import Checkpointer
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.types import PyTree

T = TypeVar("T")
logger = logging.getLogger(__name__)


class Together(Protocol):
    """Collective operations of ranks (comm.ranks.Ranks)."""

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
        """`parts` by logical shard; `shared` and `host` are taken from rank 0."""

        def write() -> None:
            for shard, checkpointer in self._parts.items():
                checkpointer.save(step, parts[shard], {"shard": shard})

        self.ranks.all_succeed(write)

        parts_of_all = int(self.ranks.everyone(len(self._parts)).sum())

        def commit() -> None:
            self._shared.save(step, shared, host | {"parts": parts_of_all})

        self.ranks.first_does(commit)

    def latest(self) -> int | None:
        """Step of the newest checkpoint that was committed, the same on all ranks."""
        return self.ranks.first_does(self._shared.latest)

    def restore(
        self,
        shared: PyTree,
        part: PyTree,
        new_parts: bool = False,
        also: Callable[[int], object] | None = None,
    ) -> tuple[int, PyTree, dict[int, PyTree], dict[str, Any]]:
        """The newest checkpoint of which every rank can read its shards: (step, shared, parts, host).

        Args:
            shared, part: structures as for Checkpointer.restore.
            new_parts: shards beyond those of the checkpoint are allowed, and None among the parts.
            also: reads more of a step; raises UserError if it cannot.
        """
        problems: list[str] = []
        steps = self.ranks.first_does(self._shared.steps)
        if not steps:
            raise NoGoodCheckpoint(f"there is no good checkpoint in {self.directory}: see jaxrl-hpc verify")
        for step in reversed(steps):
            found = None
            try:
                found = self._read(step, shared, part, new_parts)
                if also is not None:
                    also(step)
            except UserError as error:
                found = None
                problems.append(str(error))
            if self.ranks.everyone(found is not None).all():
                assert found is not None
                for checkpointer in (self._shared, *self._parts.values()):
                    checkpointer.damaged |= step != steps[-1]  # keep parts of what is damaged as a whole
                for text in problems:
                    logger.warning("%s; falling back to an older checkpoint", text)
                return step, *found
        text = "; ".join(problems) or "what other ranks need cannot be read"
        raise NoGoodCheckpoint(f"no good checkpoint in {self.directory}: {text}")

    def _read(
        self, step: int, shared: PyTree, part: PyTree, new_parts: bool
    ) -> tuple[PyTree, dict[int, PyTree], dict[str, Any]]:
        _, common, host = self._shared.restore(shared, step)
        parts = {}
        for number, checkpointer in self._parts.items():
            new = new_parts and number >= host.get("parts", number + 1)
            parts[number] = None if new else checkpointer.restore(part, step)[1]
        return common, parts, host


def shard_folder(directory: Path, shard: int) -> Path:
    return directory / f"shard-{shard:04d}"
