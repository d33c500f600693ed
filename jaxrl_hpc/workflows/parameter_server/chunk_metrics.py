"""Metrics of a chunk: counters of one worker, and means over all workers."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxrl_hpc.comm.ranks import Ranks
from jaxrl_hpc.types import Metrics
from jaxrl_hpc.workflows.actor_learner import staleness
from jaxrl_hpc.workflows.parameter_server.worker import WorkResult


class ChunkMetrics:
    """Counters of one worker."""

    def __init__(self, sums: Metrics) -> None:
        self.sums, self.staleness = sums, staleness.Staleness()
        self.busy = self.idle = 0.0

    def add(self, lag: int, used: bool, result: WorkResult) -> None:
        self.sums = result.metrics
        self.staleness.bins[np.searchsorted(staleness.EDGES, lag, side="right") - 1] += 1
        self.staleness.used += used
        self.staleness.dropped += not used
        self.staleness.lag += lag
        self.staleness.largest = max(self.staleness.largest, lag)
        self.staleness.episodes += [float(x) for x in result.ended]

    def metrics(self, ranks: Ranks, iterations: int) -> Metrics:
        """Means over workers; collective."""
        names = sorted(self.sums)
        sums = [float(self.sums[name]) for name in names]
        total = ranks.add(np.concatenate([sums, [self.busy, self.idle], self.staleness.sums()]))
        largest = int(ranks.everyone(self.staleness.largest)[:, 0].max())
        count = len(names)
        (busy, idle), rest = total[count : count + 2], total[count + 2 :]
        exchanges = max(rest[len(staleness.EDGES) :][:2].sum(), 1)  # used and dropped
        found: dict[str, Any] = {n: total[i] / (exchanges * iterations) for i, n in enumerate(names)}
        found |= staleness.describe(rest, largest)
        del found["actor_idle"], found["queue_depth"]  # workers act themselves, and nothing queues
        found["dropped_changes"] = found.pop("dropped_unrolls")
        return found | {"learner_idle": idle / max(busy + idle, 1e-9)}
