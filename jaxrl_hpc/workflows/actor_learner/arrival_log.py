"""The order of arrivals, recorded so that an asynchronous run can be repeated.

One line per unroll in the order in which a learner took it: actor, its sequence number, the version of the
parameters that made it, and whether it was used (1) or dropped as too old (0). Together with the config this
determines the run: when it is replayed, actors get for each unroll the parameters of the version recorded
here, and the learner takes unrolls in this order, whenever they arrive.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from jaxrl_hpc.checkpoint.blocks import write_atomically
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.read_files import read_text

HEAD = "actor,sequence,version,used"


class ArrivalEntry(NamedTuple):
    actor: int
    sequence: int
    version: int
    used: int


def file_of(folder: str | Path, learner: int) -> Path:
    """The schedule of one learner; `folder` is the run's."""
    return Path(folder) / f"schedule-{learner}.csv"


class ArrivalRecorder:
    """Writes entries. A resumed run gives the number before its checkpoint; later entries are cut off."""

    def __init__(self, path: Path, entries: int) -> None:
        lines = read_text(path).splitlines()[1 : entries + 1] if entries and path.exists() else []
        if len(lines) < entries:
            raise UserError(f"{path} has {len(lines)} entries, but the checkpoint was made after {entries}")
        write_atomically(path, ("\n".join([HEAD, *lines]) + "\n").encode())
        self._path = path
        self._new: list[str] = []

    def add(self, entry: ArrivalEntry) -> None:
        self._new.append(",".join(map(str, entry)) + "\n")

    def flush(self) -> None:
        """Write entries to disk, before a checkpoint counts them."""
        with self._path.open("a") as file:
            file.writelines(self._new)
        self._new = []


class ArrivalReplay:
    """A schedule that is being repeated, from entry `done` on."""

    def __init__(self, path: Path, done: int) -> None:
        if not path.is_file():
            raise UserError(
                f"run.replay_schedule: there is no {path}; name the folder of a run that was made with "
                "run.record_schedule=true and as many learners"
            )
        lines = read_text(path).splitlines()
        if not lines or lines[0] != HEAD:
            raise UserError(f"run.replay_schedule: {path} is not a schedule")
        try:
            self.entries = [ArrivalEntry(*map(int, line.split(","))) for line in lines[1:]]
        except (TypeError, ValueError):
            raise UserError(f"run.replay_schedule: {path} is damaged") from None
        self.path, self.position = path, done
        self.versions = {(e.actor, e.sequence): e.version for e in self.entries}

    def next(self) -> ArrivalEntry:
        """The current entry."""
        if self.position >= len(self.entries):
            raise UserError(
                f"run.replay_schedule: {self.path} ends after {len(self.entries)} unrolls, and this run "
                "needs more: replay a run of the same config"
            )
        return self.entries[self.position]

    def wanted(self) -> Counter[int]:
        """version -> number of unrolls still to be taken that need it."""
        return Counter(entry.version for entry in self.entries[self.position :])

    def actors(self) -> int:
        return 1 + max((entry.actor for entry in self.entries), default=-1)
