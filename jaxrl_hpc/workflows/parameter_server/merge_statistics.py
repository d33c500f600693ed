"""Running statistics of workers, merged at the end of every chunk.

A worker's data since the last merge, as sums around the mean of that merge,

    n = N − N₀,  s = N (m − c) − N₀ (m₀ − c),  q = M2 + N (m − c)² − M2₀ − N₀ (m₀ − c)²

with c the first worker's m₀, so that they can be added over workers. A worker that joined later has N₀ = 0.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.comm.ranks import Ranks
from jaxrl_hpc.ops.running_stats import RunningStats
from jaxrl_hpc.types import PyTree


def _is_statistics(node: object) -> bool:
    return isinstance(node, RunningStats)


def _raw(statistics: RunningStats, around: np.ndarray) -> np.ndarray:
    """[3, …] float64: number, sum and sum of squares around a point, per element."""
    number, mean, m2 = (np.asarray(x, np.float64) for x in statistics)
    away = mean - around
    return np.stack([np.broadcast_to(number, away.shape), number * away, m2 + number * away**2])


def merged(
    now: PyTree, before: PyTree, common: PyTree, add: Callable[[np.ndarray], np.ndarray], workers: int
) -> PyTree:
    """Statistics of all workers. `common` is the first worker's `before`; numbers outside of RunningStats
    (errors of a model) become their mean."""

    def one(now: PyTree, before: PyTree, common: PyTree) -> PyTree:
        if not _is_statistics(now):
            return jnp.asarray(add(np.asarray(now)) / workers, now.dtype)
        around = np.asarray(common.mean, np.float64)
        number, total, square = _raw(common, around) + add(_raw(now, around) - _raw(before, around))
        shift = total / np.maximum(number, 1)
        count = number.reshape(-1)[0] if number.size else 0.0
        m2 = np.maximum(square - total * shift, 0)
        return RunningStats(*(jnp.asarray(x, jnp.float32) for x in (count, around + shift, m2)))

    return jax.tree.map(one, now, before, common, is_leaf=_is_statistics)


def reconcile(ranks: Ranks, now: PyTree, before: PyTree) -> PyTree:
    """The merged statistics; collective."""
    if ranks.size == 1 or not jax.tree.leaves(now):
        return now
    return merged(now, before, ranks.share(jax.device_get(before)), ranks.add, ranks.size)
