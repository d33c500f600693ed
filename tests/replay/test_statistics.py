"""Sampling frequencies, exact probabilities, drift, and random operations against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from jaxrl_hpc.replay import kernels, native, sum_tree


def tree_with(priorities: np.ndarray, fanout: int = 8):
    shape = sum_tree.layout(priorities.size, fanout)
    return shape, sum_tree.build(shape, jnp.asarray(priorities, jnp.float32))


def skewed(size: int, seed: int) -> np.ndarray:
    """Log-uniform over six decades, a tenth of them empty."""
    rng = np.random.default_rng(seed)
    values = (10.0 ** rng.uniform(-4, 2, size)).astype(np.float32)
    values[rng.random(size) < 0.1] = 0
    return values


@pytest.mark.parametrize(
    ("capacity", "batch", "stratified"),
    [(50, 32, True), (50, 32, False), (3000, 256, True), (700, 1024, False)],
)
def test_frequencies_fit_the_probabilities(capacity: int, batch: int, stratified: bool) -> None:
    priorities = np.random.default_rng(capacity).exponential(size=capacity).astype(np.float32) + 0.2
    priorities[::7] = 0
    shape, tree = tree_with(priorities)
    operation = kernels.operations(shape, "auto", number=batch, stratified=stratified)
    probability = priorities.astype(np.float64) / priorities.astype(np.float64).sum()
    repeats = int(np.ceil(25 / probability[probability > 0].min() / batch))

    @jax.jit
    def draw(key):
        def one(carry, key):
            index, _ = operation.sample(tree, sum_tree.seed(key))
            return carry.at[index].add(1), None

        return jax.lax.scan(one, jnp.zeros(capacity, jnp.int32), jax.random.split(key, repeats))[0]

    counts = np.asarray(draw(jax.random.key(capacity + batch)))
    assert counts[priorities == 0].sum() == 0
    expected = probability * repeats * batch
    kept = expected > 0
    assert expected[kept].min() >= 20
    statistic = ((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum()
    freedom = kept.sum() - 1
    assert stats.chi2.sf(statistic, freedom) > 1e-4
    if stratified:  # parts of equal size: less spread than free draws, never more
        assert statistic < freedom
    else:
        assert stats.chi2.cdf(statistic, freedom) > 1e-4


@pytest.mark.full
@pytest.mark.skipif(not native.available(), reason="the compiled sum tree was not built")
def test_every_leaf_of_a_million_has_its_probability() -> None:
    """The draws that lead to a leaf are one interval of the 2^52: find its ends by bisection."""
    priorities = skewed(2**20, 1)
    shape, tree = tree_with(priorities)
    positive = np.flatnonzero(priorities)
    find = jax.jit(lambda words: native.find(shape, tree, words)[0])

    def leaf_of(draws: np.ndarray) -> np.ndarray:
        words = np.stack([(draws >> 26) << 6, (draws & (2**26 - 1)) << 6], axis=1).astype(np.uint32)
        return np.asarray(find(words))

    low = np.zeros(positive.size, np.int64)  # the smallest draw that leads to leaf i or beyond
    high = np.full(positive.size, 2**52, np.int64)
    while np.any(low < high):
        middle = (low + high) // 2
        beyond = leaf_of(np.minimum(middle, 2**52 - 1)) >= positive
        high = np.where(beyond & (low < high), middle, high)
        low = np.where(~beyond & (low < high), middle + 1, low)
    width = np.diff(np.append(low, 2**52)) / 2.0**52
    exact = priorities[positive].astype(np.float64) / priorities.astype(np.float64).sum()
    assert np.all(width > 0)
    assert np.abs(width / exact - 1).max() < 1e-3


@pytest.mark.parametrize("kernel", ["jax", "auto"])
@pytest.mark.parametrize("scale", [1e-24, 1.0, 1e12])
def test_edges_of_float32_never_give_an_empty_leaf(kernel: str, scale: float) -> None:
    rng = np.random.default_rng(3)
    priorities = (10.0 ** rng.uniform(-12, 12, 600) * scale).astype(np.float32)
    priorities[rng.random(600) < 0.5] = 0
    priorities[-9:] = 0  # the end of the tree is empty
    priorities[:9] = 0
    shape, tree = tree_with(np.where(priorities > 0, np.asarray(sum_tree.clip(priorities)), 0))
    edges = [0, 1, 2**6 - 1, 2**6, 2**31, 2**32 - 2**6, 2**32 - 1]
    words = np.array([(a, b) for a in edges for b in edges], np.uint32)
    random = rng.integers(0, 2**32, (2000, 2), dtype=np.uint32)
    operation = kernels.operations(shape, kernel, number=1, stratified=False)
    index, mass = jax.jit(operation.find)(tree, np.concatenate([words, random]))
    assert np.all(np.asarray(mass) > 0)
    np.testing.assert_array_equal(mass, tree[index])


def test_values_that_are_no_priorities_do_no_harm() -> None:
    shape, tree = tree_with(np.ones(20, np.float32))
    operation = kernels.operations(shape, "auto", number=4, stratified=True)
    bad = jnp.array([np.nan, np.inf, -3.0, 1e-35], jnp.float32)
    tree = operation.update(tree, jnp.arange(4, dtype=jnp.int32), bad)
    np.testing.assert_array_equal(tree[:4], np.float32([1e-30, 1e30, 1e-30, 1e-30]))
    assert np.isfinite(np.asarray(tree)).all()


@pytest.mark.full
@pytest.mark.skipif(not native.available(), reason="the compiled sum tree was not built")
def test_ten_million_updates_leave_no_drift() -> None:
    capacity, batch, rounds = 2**14, 1000, 10_000
    shape, tree = tree_with(np.ones(capacity, np.float32))
    operation = kernels.operations(shape, "native", number=1, stratified=False)

    @jax.jit
    def run(tree, key):
        def one(step, tree):
            bits = jax.random.bits(jax.random.fold_in(key, step), (2, batch), jnp.uint32)
            value = 10.0 ** (bits[1].astype(jnp.float32) * (6 / 2**32) - 4)
            return operation.update(tree, (bits[0] % capacity).astype(jnp.int32), value)

        return jax.lax.fori_loop(0, rounds, one, tree)

    tree = run(tree, jax.random.key(0))
    leaves = np.asarray(sum_tree.leaves(shape, tree))
    np.testing.assert_array_equal(tree, sum_tree.build(shape, jnp.asarray(leaves)))
    total = float(sum_tree.total(shape, tree))
    assert abs(total / leaves.astype(np.float64).sum() - 1) < 1e-6


PRIORITY = st.floats(float(np.float32(1e-12)), float(np.float32(1e12)), width=32)
STEP = st.one_of(
    st.tuples(st.just("update"), st.lists(st.tuples(st.integers(-3, 40), PRIORITY), min_size=4, max_size=4)),
    st.tuples(st.just("revive"), st.lists(st.tuples(st.integers(-3, 40), PRIORITY), min_size=4, max_size=4)),
    st.tuples(
        st.just("assign"), st.integers(0, 36), st.lists(st.just(0.0) | PRIORITY, min_size=5, max_size=5)
    ),
)


@pytest.fixture(scope="module")
def compiled():
    result = {}
    for kernel in ("jax", "native") if native.available() else ("jax",):
        shape = sum_tree.layout(37, 8)
        operation = kernels.operations(shape, kernel, number=16, stratified=True)
        result[kernel] = {name: jax.jit(getattr(operation, name)) for name in operation._fields}
    return result


@given(steps=st.lists(STEP, min_size=1, max_size=8), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_random_operations_follow_a_numpy_model(compiled, steps, seed) -> None:
    shape = sum_tree.layout(37, 8)
    model = np.zeros(37, np.float32)
    trees = {kernel: sum_tree.empty(shape) for kernel in compiled}
    for step in steps:
        if step[0] == "assign":
            _, start, values = step
            where, values = jnp.int32(start), np.float32(values)
            model[(start + np.arange(5)) % 37] = values
        else:
            where = np.array([i for i, _ in step[1]], np.int32)
            values = np.float32([p for _, p in step[1]])
            for i in set(where.tolist()):
                if 0 <= i < 37 and (step[0] == "revive" or model[i] > 0):
                    model[i] = values[where == i].max()
        for kernel, operation in compiled.items():
            trees[kernel] = operation[step[0]](trees[kernel], where, values)
            np.testing.assert_array_equal(trees[kernel][:37], model)
    draws = {}
    for kernel, operation in compiled.items():
        index, mass = operation["sample"](trees[kernel], jnp.array([seed, 1], jnp.uint32))
        np.testing.assert_array_equal(mass, model[index] if model.any() else np.zeros(16))
        assert np.all(np.asarray(mass) > 0) == bool(model.any())
        draws[kernel] = np.asarray(index)
    for tree in trees.values():
        np.testing.assert_array_equal(tree, trees["jax"])
    for index in draws.values():
        np.testing.assert_array_equal(index, draws["jax"])
