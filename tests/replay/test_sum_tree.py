"""The sum tree against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.replay import sum_tree


@pytest.mark.parametrize("fanout", [2, 8, 64])
@pytest.mark.parametrize("capacity", [1, 64, 1003])
def test_updates_equal_a_fresh_build_and_find_inverts_the_distribution(capacity: int, fanout: int) -> None:
    shape = sum_tree.layout(capacity, fanout)
    rng = np.random.default_rng(capacity + fanout)
    first = rng.exponential(size=capacity).astype(np.float32)
    index = rng.integers(-2, capacity + 2, 50).astype(np.int32)
    value = rng.exponential(size=50).astype(np.float32)
    words = rng.integers(0, 2**32, (200, 2), dtype=np.uint32)

    @jax.jit
    def work(first, index, value, words):
        tree = sum_tree.assign(shape, sum_tree.empty(shape), jnp.int32(capacity // 3), first)
        tree = sum_tree.update(shape, tree, index, value)
        fresh = sum_tree.build(shape, sum_tree.leaves(shape, tree))
        return tree, fresh, sum_tree.find(shape, tree, words)

    tree, fresh, (found, mass) = jax.tree.map(np.asarray, work(first, index, value, words))
    model = np.roll(first, capacity // 3)
    for i in range(capacity):
        if np.any(index == i):
            model[i] = value[index == i].max()
    np.testing.assert_array_equal(tree[:capacity], model)
    np.testing.assert_array_equal(tree, fresh)
    fraction = ((words[:, 0] >> 6).astype(np.float64) * 2**26 + (words[:, 1] >> 6)) / 2**52
    edges = np.cumsum(model.astype(np.float64))
    expected = np.searchsorted(edges, fraction * edges[-1], side="right")
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(mass, model[found])


def test_empty_leaves_stay_empty_unless_revived() -> None:
    shape = sum_tree.layout(10, 8)
    index, value = jnp.array([3, 4], jnp.int32), jnp.array([1.0, 2.0])
    tree = sum_tree.empty(shape)
    assert float(sum_tree.total(shape, sum_tree.update(shape, tree, index, value))) == 0.0
    tree = sum_tree.update(shape, tree, index, value, revive=True)
    assert float(sum_tree.total(shape, tree)) == 3.0


def test_an_empty_tree_reports_mass_zero() -> None:
    shape = sum_tree.layout(100, 8)
    words = jnp.array([[0, 0], [2**32 - 1, 2**32 - 1]], jnp.uint32)
    index, mass = sum_tree.find(shape, sum_tree.empty(shape), words)
    assert np.all((np.asarray(index) >= 0) & (np.asarray(index) < 100))
    np.testing.assert_array_equal(mass, 0.0)


@pytest.mark.parametrize("capacity", [1, 7, 4096, 10_000])
def test_leaves_with_a_priority_are_counted(capacity):
    values = (np.random.default_rng(0).random(capacity) < 0.3).astype(np.float32)
    shape = sum_tree.layout(capacity, 8)
    tree = sum_tree.build(shape, jnp.asarray(values))
    assert int(jax.jit(lambda t: sum_tree.count(shape, t))(tree)) == int(values.sum())
