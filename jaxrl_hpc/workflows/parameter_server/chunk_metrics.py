"""What a worker of a parameter server did in a chunk, and the metrics of all workers that follow from it."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxrl_hpc.comm.ranks import Ranks
from jaxrl_hpc.types import Metrics
from jaxrl_hpc.workflows.actor_learner import staleness
from jaxrl_hpc.workflows.parameter_server.worker import WorkResult


class ChunkMetrics:
    """What one worker did in a chunk."""

    def __init__(self, sums: Metrics) -> None:
        self.sums, self.ages = sums, staleness.Staleness()
        self.busy = self.idle = 0.0

    def add(self, lag: int, used: bool, result: WorkResult) -> None:
        self.sums = result.metrics
        self.ages.bins[np.searchsorted(staleness.EDGES, lag, side="right") - 1] += 1
        self.ages.used += used
        self.ages.dropped += not used
        self.ages.lag += lag
        self.ages.largest = max(self.ages.largest, lag)
        self.ages.episodes += [float(x) for x in result.ended]

    def metrics(self, ranks: Ranks, iterations: int) -> Metrics:
        """Means over workers, with so many iterations per exchange; collective."""
        names = sorted(self.sums)
        sums = [float(self.sums[name]) for name in names]
        total = ranks.add(np.concatenate([sums, [self.busy, self.idle], self.ages.sums()]))
        largest = int(ranks.everyone(self.ages.largest)[:, 0].max())
        count = len(names)
        (busy, idle), rest = total[count : count + 2], total[count + 2 :]
        exchanges = max(rest[len(staleness.EDGES) :][:2].sum(), 1)  # used and dropped
        found: dict[str, Any] = {n: total[i] / (exchanges * iterations) for i, n in enumerate(names)}
        found |= staleness.describe(rest, largest)
        del found["actor_idle"], found["queue_depth"]  # workers act themselves, and nothing queues
        found["dropped_changes"] = found.pop("dropped_unrolls")
        return found | {"learner_idle": idle / max(busy + idle, 1e-9)}
