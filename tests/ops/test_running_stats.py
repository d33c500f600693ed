"""Running statistics against NumPy over all data, however it is split."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.ops import running_stats


def blocks(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    # away from zero: a plain sum of squares would lose digits
    return [(100.0 + rng.normal(size=(8, 4, 3)) * [1.0, 3.0, 10.0]).astype(np.float32) for _ in range(20)]


def test_statistics_are_those_of_all_data():
    data, statistics = blocks(0), running_stats.empty((3,))
    for block in data:
        statistics = running_stats.merge(statistics, running_stats.sums(statistics, block))
    everything = np.concatenate(data).reshape(-1, 3).astype(np.float64)
    assert statistics.number == len(everything)
    np.testing.assert_allclose(statistics.mean, everything.mean(0), rtol=1e-6)
    np.testing.assert_allclose(running_stats.variance(statistics), everything.var(0), rtol=1e-3)


@pytest.mark.parametrize("shards", [2, 4])
def test_sums_add_up_over_shards(shards):
    statistics = running_stats.empty((3,))
    for block in blocks(1):
        parts = [running_stats.sums(statistics, part) for part in np.split(block, shards, axis=1)]
        added = jax.tree.map(lambda *x: sum(x), *parts)
        whole = running_stats.sums(statistics, block)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-2), added, whole)
        statistics = running_stats.merge(statistics, added)
    everything = np.concatenate(blocks(1)).reshape(-1, 3).astype(np.float64)
    np.testing.assert_allclose(statistics.mean, everything.mean(0), rtol=1e-6)


def test_variance_is_one_until_there_are_two_values():
    statistics = running_stats.empty(())
    assert running_stats.variance(statistics) == 1
    statistics = running_stats.merge(statistics, running_stats.sums(statistics, jnp.array([3.0])))
    assert running_stats.variance(statistics) == 1
    statistics = running_stats.merge(statistics, running_stats.sums(statistics, jnp.array([5.0])))
    assert running_stats.variance(statistics) == 1.0 and statistics.mean == 4.0
