"""Orders from the grid shuffle: permutations, and as random as true ones where it matters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxrl_hpc.ops.shuffle import grid_orders


@pytest.mark.parametrize(("rows", "columns"), [(128, 16), (5, 7), (16, 1), (1, 9), (2, 2)])
def test_orders_are_permutations(rows, columns):
    orders = np.asarray(grid_orders(jax.random.key(0), 6, rows, columns))
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(rows * columns))


def places(rows: int, columns: int, count: int) -> np.ndarray:
    """[count, N] where each cell goes, over many independent orders."""
    orders = jax.jit(lambda k: grid_orders(k, count, rows, columns))(jax.random.key(5))
    return np.asarray(jnp.argsort(orders, axis=-1))


def test_every_cell_goes_everywhere_equally_often():
    found = places(8, 4, 4_000)
    for cell in (0, 7, 31):
        assert scipy.stats.chisquare(np.bincount(found[:, cell], minlength=32)).pvalue > 1e-3


@pytest.mark.parametrize(("rows", "columns"), [(8, 4), (128, 16), (16, 64)])
def test_pairs_share_a_minibatch_as_often_as_under_true_shuffles(rows, columns):
    count, minibatches = 4_000, 4
    size = rows * columns // minibatches
    group = places(rows, columns, count) // size
    expected = (size - 1) / (rows * columns - 1)
    # neighbours in time, in the same step, diagonal, far away: cells that the rounds could keep together
    others = {1, columns, columns + 1, rows * columns // 2, rows * columns - 1, (rows // 2) * columns + 1}
    for other in sorted(others):
        together = int((group[:, 0] == group[:, other]).sum())
        assert scipy.stats.binomtest(together, count, expected).pvalue > 1e-4, other


def test_triples_spread_over_halves_as_under_true_shuffles():
    half = places(16, 8, 6_000) >= 64
    pattern = half[:, 0] * 4 + half[:, 1] * 2 + half[:, 8]
    ways = {0: 64 * 63 * 62, 1: 64 * 63 * 64}  # all alike, or one apart
    weights = np.array([ways[0] if p in (0, 7) else ways[1] for p in range(8)], float)
    observed = np.bincount(pattern, minlength=8)
    assert scipy.stats.chisquare(observed, 6_000 * weights / weights.sum()).pvalue > 1e-3
