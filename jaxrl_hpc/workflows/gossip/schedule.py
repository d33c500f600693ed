"""Recorded exchanges of gossip: the neighbours' versions that every rank averaged, and the chunks.

A rank's file (actor_learner/arrival_log.py) has for each of its exchanges a line of its own, with the number
of the exchange among those of all ranks, and a line per neighbour, with the version read from it (`used` 0:
none).
"""

from __future__ import annotations

import bisect
from pathlib import Path
from typing import NamedTuple

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.workflows.actor_learner.arrival_log import (
    ArrivalEntry,
    ArrivalRecorder,
    ArrivalReplay,
    file_of,
)


class ExchangeRecord(NamedTuple):
    number: int  # among the exchanges of all ranks
    versions: dict[int, int | None]  # neighbour -> version averaged; None: it was left out


class GossipRecorder:
    """Writes a rank's exchanges; `done` of them, with so many neighbours each, are in the file already."""

    def __init__(self, folder: Path, rank: int, done: int, degree: int) -> None:
        self.rank, self._file = rank, ArrivalRecorder(file_of(folder, rank), done * (1 + degree))

    def add(self, exchange: int, record: ExchangeRecord) -> None:
        self._file.add(ArrivalEntry(self.rank, exchange, record.number, 1))
        for other, version in record.versions.items():
            self._file.add(ArrivalEntry(other, exchange, version or 0, int(version is not None)))

    def flush(self) -> None:
        self._file.flush()


class GossipReplay:
    """The schedules of all ranks, as one of them repeats its own.

    Args:
      folder: of the run that was recorded.
      rank: this one.
      done: exchanges of every rank before this job.
      degree: neighbours per exchange.
    """

    def __init__(self, folder: str, rank: int, done: list[int], degree: int) -> None:
        self._exchanges: list[ExchangeRecord] = []
        reads: tuple[list[int], list[int]] = ([], [])  # of this rank's even and odd versions, to come
        for other, before in enumerate(done):
            found = _exchanges(ArrivalReplay(file_of(folder, other), 0), degree)
            if other == rank:
                self._exchanges = found
            for exchange in found[before:]:
                if (version := exchange.versions.get(rank)) is not None:
                    reads[version % 2].append(version)
        self._reads = tuple(sorted(each) for each in reads)

    def exchange(self, number: int) -> ExchangeRecord:
        """The rank's own exchange, from 0 on."""
        return self._exchanges[number]

    def shares(self, begin: int, end: int) -> list[int]:
        """Which exchanges from `begin` to `end` of all ranks are this rank's."""
        return [e.number for e in self._exchanges if begin <= e.number < end]

    def reads_before(self, version: int) -> int:
        """Reads of versions in the buffer that this one overwrites."""
        return bisect.bisect_left(self._reads[version % 2], version)


def _exchanges(file: ArrivalReplay, degree: int) -> list[ExchangeRecord]:
    size = 1 + degree
    if len(file.entries) % size:
        raise UserError(
            f"run.replay_schedule: {file.path} is of another topology or number of ranks: replay a run "
            "of the same config with as many"
        )
    blocks = [file.entries[i : i + size] for i in range(0, len(file.entries), size)]
    return [
        ExchangeRecord(own.version, {e.actor: e.version if e.used else None for e in others})
        for own, *others in blocks
    ]
