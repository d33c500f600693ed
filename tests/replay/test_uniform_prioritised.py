"""Both memories against a plain list of what was written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.replay import prioritised, sum_tree, uniform
from jaxrl_hpc.schema import traced_values
from tests.tiers import quick

T, B, N, CAPACITY = 4, 3, 64, 60


def build(module, window, **options):
    config = module.Config(capacity=CAPACITY, min_size=10, **options)
    replay = module.make(config, num_envs=B, unroll_length=T, window=window, batch_size=N)
    hypers = {name: jnp.float32(value) for name, value in traced_values(config).items()}
    return replay, hypers


@pytest.mark.parametrize("module", [uniform, prioritised])
@pytest.mark.parametrize("window", quick([1, 3, 6], [3]))
def test_windows_are_whole_and_all_are_reached(module, window, unroll, example) -> None:
    replay, hypers = build(module, window)
    state = replay.init(example, hypers)
    add, sample = jax.jit(lambda s, u: replay.add(s, u, None)), jax.jit(replay.sample)
    slots = CAPACITY // B
    for round_number in range(9):
        state = add(state, unroll(round_number * T, T, B))
        written = (round_number + 1) * T
        if written < window:
            continue
        seen = set()
        for repeat in range(12):
            batch = sample(state, jax.random.key(100 * round_number + repeat), jnp.float32(0.5))
            stamp = np.asarray(batch.data.obs["stamp"])  # [n, N, 2]
            np.testing.assert_array_equal(stamp[:, :, 0], stamp[0, :, 0] + np.arange(window)[:, None])
            np.testing.assert_array_equal(stamp[:, :, 1], np.broadcast_to(stamp[0, :, 1], (window, N)))
            expected = unroll(0, written, B)
            for got, whole in zip(jax.tree.leaves(batch.data), jax.tree.leaves(expected), strict=True):
                np.testing.assert_array_equal(got, np.asarray(whole)[stamp[..., 0], stamp[..., 1]])
                assert got.dtype == whole.dtype
            np.testing.assert_array_equal(batch.index, (stamp[0, :, 0] % slots) * B + stamp[0, :, 1])
            seen |= {tuple(pair) for pair in stamp[0].tolist()}
        oldest = max(written - slots, 0)
        assert seen == {(t, b) for t in range(oldest, written - window + 1) for b in range(B)}


@pytest.mark.parametrize("module", [uniform, prioritised])
@pytest.mark.parametrize("final_capacity", [0, 40])
def test_the_drawable_share_is_that_of_windows_that_are_drawn(
    module, final_capacity, unroll, example
) -> None:
    """Every step ends an episode, so that a small side ring kills windows."""
    window = 2
    replay, hypers = build(module, window, store_next="by_index", final_capacity=final_capacity)
    add, sample = jax.jit(lambda s, u: replay.add(s, u, None)), jax.jit(replay.sample)
    state = replay.init(example, hypers)
    for round_number in range(9):
        steps = unroll(round_number * T, T, B)
        state = add(state, steps._replace(last=jnp.ones((T, B), bool)))
    drawn: set[int] = set()
    for repeat in range(40):
        drawn |= set(np.asarray(sample(state, jax.random.key(repeat), jnp.float32(0)).index).tolist())
    share = len(drawn) / ((CAPACITY // B - window + 1) * B)
    assert share < 0.8  # a ring of 40 or less for 60 ends
    np.testing.assert_allclose(jax.jit(replay.drawable)(state), share, rtol=1e-6)


def test_given_priorities_reach_the_tree_when_their_window_is_complete(unroll, example) -> None:
    replay, hypers = build(prioritised, 3, alpha=1.0)
    state = replay.init(example, hypers)
    shape = sum_tree.layout(CAPACITY, 8)
    model = np.zeros((CAPACITY // B, B), np.float32)
    rng = np.random.default_rng(0)
    given: dict[int, np.ndarray] = {}
    for round_number in range(12):
        priority = rng.exponential(size=(T, B)).astype(np.float32) + 0.1
        state = replay.add(state, unroll(round_number * T, T, B), jnp.asarray(priority))
        written = (round_number + 1) * T
        for step in range(T):
            given[round_number * T + step] = priority[step]
        model[:] = 0
        for start in range(max(written - CAPACITY // B, 0), written - 2):
            model[start % (CAPACITY // B)] = given[start] + np.float32(1e-6)
        np.testing.assert_allclose(sum_tree.leaves(shape, state.tree), model.reshape(-1), rtol=1e-5)
        np.testing.assert_array_equal(state.tree, sum_tree.build(shape, sum_tree.leaves(shape, state.tree)))


def test_importance_weights_follow_the_probabilities(unroll, example) -> None:
    replay, hypers = build(prioritised, 1, alpha=0.5, beta_start=0.2, beta_end=0.8)
    state = replay.init(example, hypers)
    state = replay.add(state, unroll(0, T, B), None)
    priority = jnp.arange(1.0, T * B + 1)
    state = replay.prioritise(state, jnp.arange(T * B, dtype=jnp.int32), priority)
    batch = replay.sample(state, jax.random.key(0), jnp.float32(0.5))
    mass = (np.asarray(priority) + 1e-6) ** 0.5
    raw = (1 / (mass / mass.sum())[np.asarray(batch.index)]) ** 0.5
    np.testing.assert_allclose(batch.weight, raw / raw.max(), rtol=1e-5)


def test_sizes_that_cannot_work_are_named(example) -> None:
    with pytest.raises(UserError, match=r"replay\.capacity is 60"):
        uniform.make(
            uniform.Config(capacity=60, min_size=10), num_envs=3, unroll_length=4, window=18, batch_size=8
        )
    with pytest.raises(UserError, match=r"replay\.min_size is 61"):
        uniform.make(
            uniform.Config(capacity=60, min_size=61), num_envs=3, unroll_length=4, window=1, batch_size=8
        )
