"""The partners of a rank in an exchange."""

from __future__ import annotations

import numpy as np

from jaxrl_hpc.workflows.gossip.config import Topology


def neighbours(topology: Topology, rank: int, ranks: int, exchange: int, seed: int) -> list[int]:
    """Ranks to read from, in order; deterministic.

    Args:
      exchange: the rank's own number of exchanges so far.
      seed: of the run, for random neighbours.
    """
    others = [r for r in range(ranks) if r != rank]
    if topology == "complete" or not others:
        return others
    if topology == "ring":
        return sorted({(rank - 1) % ranks, (rank + 1) % ranks} - {rank})
    return [others[np.random.default_rng([seed, rank, exchange]).integers(len(others))]]


def average(mine: np.ndarray, others: dict[int, np.ndarray], rank: int, rate: float) -> np.ndarray:
    """(1 − rate) · mine + rate · mean of mine and others [P].

    The mean is added up in order of rank: ranks that average the same vectors get the same bits.
    """
    if not others:
        return mine.copy()
    group = others | {rank: mine}
    total = sum((group[r] for r in sorted(group)[1:]), group[min(group)].copy())
    mean = total / np.float32(len(group))
    return mean if rate == 1 else np.float32(1 - rate) * mine + np.float32(rate) * mean
