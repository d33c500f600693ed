"""Random orders: permutations, and as random as true ones where it matters, whatever their size."""

import functools

import jax
import numpy as np
import pytest
import scipy.stats

from jaxrl_hpc.ops import shuffle
from jaxrl_hpc.ops.shuffle import random_orders

# steps x copies of an unroll: one, two, three, eight copies, odd sizes, primes; sorted and by grid
SHAPES = [(128, 1), (128, 2), (127, 3), (512, 1), (512, 2), (512, 3), (128, 8), (37, 7), (1021, 1), (32, 32)]


@functools.cache
def places(size: int, count: int) -> np.ndarray:
    """[count, size] where each number goes, over many independent orders."""
    orders = np.asarray(jax.jit(lambda k: random_orders(k, count, size))(jax.random.key(5)))
    found = np.empty_like(orders)
    np.put_along_axis(found, orders, np.arange(size, dtype=np.int32)[None], axis=1)
    return found


@pytest.mark.parametrize("size", [1, 2, 7, 16, 35, 256, 1021, 2048])
def test_orders_are_permutations(size):
    orders = np.asarray(random_orders(jax.random.key(0), 6, size))
    assert orders.dtype == np.int32
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(size))


def test_both_ways_to_shuffle_are_tested():
    grids = [shuffle.grid_of(rows * columns) for rows, columns in SHAPES]
    good = [a >= shuffle.SMALLEST_SIDE and b <= shuffle.LONGEST_RATIO * a for a, b in grids]
    assert sum(good) >= 3 and sum(not g for g in good) >= 3


@pytest.mark.parametrize("size", [32, 256])
def test_every_number_goes_everywhere_equally_often(size):
    found = places(size, 200 * size)
    for number in (0, 7, size - 1):
        assert scipy.stats.chisquare(np.bincount(found[:, number], minlength=size)).pvalue > 1e-3


@pytest.mark.parametrize(("steps", "copies"), SHAPES)
def test_pairs_are_as_far_apart_as_under_true_shuffles(steps, copies):
    """The distance of two numbers after the shuffle, chi-square against all distances alike.

    One pair from each order, so that counts are independent.
    """
    size, count, bins = steps * copies, 2_000, 12
    found = places(size, count)
    rng = np.random.default_rng(0)
    expected = np.diff(np.linspace(0, size - 1, bins + 1).astype(int)) * count / (size - 1)
    edges = 1 + np.linspace(0, size - 1, bins + 1).astype(int)
    # neighbours in time, in the same step, diagonal, far away: what rounds over a grid could keep together
    grid_row = shuffle.grid_of(size)[1]
    for other in sorted({1, copies, copies + 1, grid_row, grid_row + 1, size // 2, size - 1} - {size, 0}):
        first = rng.integers(size, size=count)
        row = np.arange(count)
        distance = (found[row, (first + other) % size] - found[row, first]) % size
        observed = np.histogram(distance, edges)[0]
        assert observed.sum() == count
        assert scipy.stats.chisquare(observed, expected).pvalue > 1e-4, other


@pytest.mark.parametrize(("steps", "copies"), SHAPES)
def test_neighbours_share_a_minibatch_as_often_as_under_true_shuffles(steps, copies):
    """A z-test over the number of neighbouring pairs in one minibatch, by order: its mean and its spread."""
    size, count = steps * copies, 2_000
    part = -(-size // 4)
    sizes = np.bincount(np.arange(size) // part)
    expected = (sizes * (sizes - 1)).sum() / (size * (size - 1))
    group = places(size, count) // part
    rng = np.random.default_rng(1)
    true = np.argsort(rng.random((400, size)), axis=-1) // part
    for other in sorted({1, copies, shuffle.grid_of(size)[1]} - {size}):
        together, reference = ((g[:, other:] == g[:, :-other]).sum(axis=1) for g in (group, true))
        z = (together.mean() - expected * (size - other)) / (together.std() / np.sqrt(count))
        assert abs(z) < 4, other
        # an order that keeps neighbours together half of the time and parts them otherwise has the same mean
        assert scipy.stats.ks_2samp(together, reference).pvalue > 1e-4, other


def test_triples_spread_over_halves_as_under_true_shuffles():
    size, count = 256, 6_000
    half = places(size, count) >= size // 2
    pattern = half[:, 0] * 4 + half[:, 1] * 2 + half[:, 16]
    h = size // 2
    ways = {0: h * (h - 1) * (h - 2), 1: h * (h - 1) * h}  # all alike, or one apart
    weights = np.array([ways[0] if p in (0, 7) else ways[1] for p in range(8)], float)
    observed = np.bincount(pattern, minlength=8)
    assert scipy.stats.chisquare(observed, count * weights / weights.sum()).pvalue > 1e-3


def test_orders_of_one_key_are_independent():
    """Epochs of one unroll: the second order as seen from the first is as random as the first."""
    size, count = 256, 2_000
    first, second = places(size, 2 * count).reshape(count, 2, size).transpose(1, 0, 2)
    same = int((first[:, 0] // 64 == second[:, 0] // 64).sum())
    assert scipy.stats.binomtest(same, count, 0.25).pvalue > 1e-4
