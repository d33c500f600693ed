"""Shards together sample like one big tree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxrl_hpc.replay import global_sampling, prioritised, sum_tree
from jaxrl_hpc.schema import traced_values
from tests.tiers import quick


def hypers_of(config) -> dict:
    return {name: jnp.float32(value) for name, value in traced_values(config).items()}


@pytest.mark.parametrize("shards", quick([1, 2, 4], [2]))
@pytest.mark.parametrize("sampling", ["independent", "stratified"])
def test_shards_together_sample_like_one_big_tree(shards: int, sampling: str, unroll, example) -> None:
    used, per_shard, copies, batch_size, rounds = 24, 48, 3, 64 // shards, 600
    config = prioritised.Config(capacity=per_shard, min_size=1, alpha=1.0, sampling=sampling)
    replay = prioritised.make(config, num_envs=copies, unroll_length=8, window=1, batch_size=batch_size)
    shared = replay.shared
    rng = np.random.default_rng(shards)
    priorities = np.zeros((shards, per_shard), np.float32)  # half of every shard is still empty
    priorities[:, :used] = rng.exponential(size=(shards, used)) + 0.2
    priorities[0] *= 5  # masses differ between shards
    hypers = hypers_of(config)

    def run(rank, data, priority, keys):
        state = replay.init(example, hypers)
        state = replay.add(state, data, priority[:used].reshape(8, copies))

        def one(carry, key):
            masses = jax.lax.all_gather(shared.mass(state)[1], "shard")
            alone = jax.tree.map(lambda x: x[None], state)
            rows = jax.lax.psum(shared.offer(alone, rank[None], masses, key), "shard")
            everything = shared.assemble(state, rows, jnp.float32(1))
            batch = global_sampling.part_of(everything, rank, shards)
            return carry, (batch.index, batch.weight, batch.data.obs["stamp"][0])

        _, drawn = jax.lax.scan(one, 0, keys)
        index = jax.lax.all_gather(drawn[0][0], "shard").reshape(-1)
        values = shared.scale(state, index.astype(jnp.float32) + 1)
        after = shared.prioritise(state, rank, index, values)
        return drawn, after.tree

    data = jax.tree.map(lambda *x: jnp.stack(x), *[unroll(100 * s, 8, copies) for s in range(shards)])
    keys = jax.random.split(jax.random.key(shards), rounds)
    mapped = jax.vmap(run, (0, 0, 0, None), axis_name="shard")
    (index, weight, stamp), trees = jax.tree.map(
        np.asarray, jax.jit(mapped)(jnp.arange(shards), data, jnp.asarray(priorities), keys)
    )
    counts = np.bincount(index.reshape(-1), minlength=shards * per_shard)
    mass = priorities.reshape(-1).astype(np.float64)
    expected = mass / mass.sum() * counts.sum()
    full = mass > 0
    assert counts[full].sum() == 64 * rounds and expected[full].min() >= 20
    assert stats.chisquare(counts[full], expected[full]).pvalue > 1e-4
    # The data is the index's, wherever it came from.
    owner, local = index // per_shard, index % per_shard
    np.testing.assert_array_equal(stamp[..., 0], 100 * owner + local // copies)
    np.testing.assert_array_equal(stamp[..., 1], local % copies)
    # Weights come from global probabilities and are normalised over the whole batch.
    together = np.moveaxis(index, 0, -1).reshape(rounds, -1)
    raw = 1 / mass[together]
    np.testing.assert_allclose(
        np.moveaxis(weight, 0, -1).reshape(rounds, -1), raw / raw.max(1, keepdims=True), rtol=1e-4
    )
    # New priorities reach their owners.
    for drawn in index[:, 0].reshape(-1):
        leaf = trees[drawn // per_shard][drawn % per_shard]
        np.testing.assert_allclose(leaf, drawn + 1, rtol=1e-5)


@pytest.mark.parametrize("sampling", ["independent", "stratified"])
def test_shards_of_a_device_offer_what_each_would_alone(sampling: str, unroll, example) -> None:
    """Also where nearly all draws fall on one of them, which takes several passes."""
    shards, copies = 4, 3
    config = prioritised.Config(capacity=48, min_size=1, alpha=1.0, sampling=sampling)
    replay = prioritised.make(config, num_envs=copies, unroll_length=8, window=2, batch_size=4)
    hypers, rng = hypers_of(config), np.random.default_rng(0)
    priorities = jnp.asarray(rng.exponential(size=(shards, 8, copies)), jnp.float32).at[2].mul(500.0)
    states = [
        replay.add(replay.init(example, hypers), unroll(100 * s, 8, copies), priorities[s])
        for s in range(shards)
    ]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *states)
    masses = jax.vmap(replay.shared.mass)(stacked)[1]
    key, numbers = jax.random.key(1), jnp.arange(shards)
    whole = replay.shared.offer(stacked, numbers, masses, key)
    parts = [
        replay.shared.offer(
            jax.tree.map(lambda x, s=s: x[s : s + 2], stacked), numbers[s : s + 2], masses, key
        )
        for s in (0, 2)
    ]
    np.testing.assert_array_equal(whole, parts[0] + parts[1])
    index = np.asarray(replay.shared.assemble(states[0], whole, jnp.float32(1)).index)
    assert (index // 48 == 2).sum() > 12 and len(index) == 16, "one shard owns more than a pass takes"
    owners = global_sampling.split(masses, sum_tree.draw(sum_tree.seed(key), 16, sampling == "stratified"))[0]
    np.testing.assert_array_equal(index // 48, owners)
