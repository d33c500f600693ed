"""Staleness of consumed unrolls, and idle time: sums over a chunk.

Sums are added over learners before they become metrics. Staleness is a histogram whose bins double: columns
lag/0, lag/1, lag/2_3, lag/4_7, …, the share of consumed unrolls with that lag.
"""

from __future__ import annotations

import itertools

import numpy as np

from jaxrl_hpc.workflows.actor_learner.messages import UnrollMessage

EDGES = (0, 1, 2, 4, 8, 16, 32, 64)  # lower bounds of the bins; the last is open
NAMES = (
    *(f"lag/{a}" if b == a + 1 else f"lag/{a}_{b - 1}" for a, b in itertools.pairwise(EDGES)),
    f"lag/{EDGES[-1]}_up",
)


class Staleness:
    """Counters of unrolls taken since the last `reset`."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.bins = np.zeros(len(EDGES))
        self.used, self.dropped, self.lag, self.largest = 0, 0, 0, 0
        self.depth, self.busy, self.idle = 0.0, 0.0, 0.0
        self.episodes = np.zeros(3)  # number, sum of returns, sum of lengths

    def add(self, lag: int, depth: int, message: UnrollMessage, dropped: bool) -> None:
        """An unroll that was taken while `depth` others waited. Episodes count even if it is dropped."""
        self.bins[np.searchsorted(EDGES, lag, side="right") - 1] += 1
        self.used, self.dropped = self.used + (not dropped), self.dropped + dropped
        self.lag, self.largest = self.lag + lag, max(self.largest, lag)
        self.depth += depth
        self.busy += float(message.header.busy)
        self.idle += float(message.header.idle)
        self.episodes += [float(x) for x in message.ended]

    def sums(self) -> np.ndarray:
        """To be added over learners."""
        rest = [self.used, self.dropped, self.lag, self.depth, self.busy, self.idle, *self.episodes]
        return np.concatenate([self.bins, rest])


def describe(sums: np.ndarray, largest: int) -> dict[str, float]:
    """The metrics that follow from sums of all learners."""
    bins, rest = sums[: len(EDGES)], sums[len(EDGES) :]
    used, dropped, lag, depth, busy, idle, episodes, returns, lengths = (float(x) for x in rest)
    taken = max(used + dropped, 1.0)
    return {
        "episodes": episodes,
        "episode_return": returns / episodes if episodes else float("nan"),
        "episode_length": lengths / episodes if episodes else float("nan"),
        "lag_mean": lag / taken,
        "lag_max": float(largest),
        **{name: float(count) / taken for name, count in zip(NAMES, bins, strict=True)},
        "dropped_unrolls": dropped,
        "queue_depth": depth / taken,
        "actor_idle": idle / (busy + idle) if busy + idle else 0.0,
    }
