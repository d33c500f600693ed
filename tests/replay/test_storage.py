"""Rows come back bit for bit, and next observations by index are those that were given."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.ops import row_packing
from jaxrl_hpc.replay import prioritised, storage, sum_tree, uniform
from jaxrl_hpc.schema import traced_values

T, B, N, CAPACITY = 4, 3, 256, 72  # 24 slots


def test_packing_keeps_every_bit() -> None:
    rng = np.random.default_rng(0)
    tree = {
        "f32": rng.normal(size=(2, 3, 4)).astype(np.float32),
        "i32": rng.integers(-5, 5, (2, 3), dtype=np.int32),
        "u8": rng.integers(0, 255, (2, 3, 5, 5), dtype=np.uint8),
        "flag": rng.random((2, 3)) < 0.5,
        "f16": rng.normal(size=(2, 3, 3)).astype(np.float16),
        "nan": np.full((2, 3), np.nan, np.float32),
        "none": np.zeros((2, 3, 0), np.float32),
    }
    packing = row_packing.packing(jax.tree.map(lambda x: x[0, 0], tree))
    back = jax.jit(lambda t: row_packing.unpack(packing, row_packing.pack(packing, t)))(tree)
    for name, value in tree.items():
        assert back[name].dtype == value.dtype
        assert np.asarray(back[name]).tobytes() == value.tobytes()
    assert row_packing.row_bytes(packing) <= 4 * 4 + 4 + 25 + 1 + 6 + 4 + 3  # frames are not widened


@pytest.mark.parametrize("module", [uniform, prioritised])
@pytest.mark.parametrize("window", [1, 3])
def test_next_observations_by_index_are_exact(module, window, unroll, example) -> None:
    """Episodes end often and the side ring is as small as allowed, so that windows get lost."""
    finals = (window + T) * B
    config = module.Config(capacity=CAPACITY, min_size=3, store_next="by_index", final_capacity=finals)
    replay = module.make(config, num_envs=B, unroll_length=T, window=window, batch_size=N)
    state = replay.init(example, {k: jnp.float32(v) for k, v in traced_values(config).items()})
    add, sample = jax.jit(lambda s, u: replay.add(s, u, None)), jax.jit(replay.sample)
    slots, every = CAPACITY // B, 2
    for turn in range(16):
        state = add(state, unroll(turn * T, T, B, every))
        written = (turn + 1) * T
        batch = sample(state, jax.random.key(turn), jnp.float32(0))
        stamp = np.asarray(batch.data.obs["stamp"])
        expected = unroll(0, written, B, every)
        for got, whole in zip(jax.tree.leaves(batch.data), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(got, np.asarray(whole)[stamp[..., 0], stamp[..., 1]])
        # What may be sampled: windows none of whose final observations was overwritten.
        last = np.asarray(expected.last)  # [written, B]
        ends = np.argwhere(last)
        lost = ends[: max(len(ends) - finals, 0)]
        oldest = max(written - slots, 0)
        whole_windows = {(t, b) for t in range(oldest, written - window + 1) for b in range(B)}
        broken = {(t - k, b) for t, b in lost.tolist() for k in range(window)}
        seen = {tuple(pair) for pair in stamp[0].tolist()}
        if module is prioritised:
            shape = sum_tree.layout(CAPACITY, 8)
            alive = np.flatnonzero(np.asarray(sum_tree.leaves(shape, state.tree)))
            expected_alive = {(t % slots) * B + b for t, b in whole_windows - broken}
            assert set(alive.tolist()) == expected_alive
        else:
            limit = lost[-1][0] if len(lost) else -1
            assert seen <= {(t, b) for t, b in whole_windows if t > limit}
        assert seen <= whole_windows - broken and seen


def test_large_observations_are_not_stored_twice(example) -> None:
    large = example._replace(obs=jnp.zeros(2048, jnp.uint8), next_obs=jnp.zeros(2048, jnp.uint8))
    config = uniform.Config(capacity=4096, min_size=1)
    replay = uniform.make(config, num_envs=4, unroll_length=4, window=1, batch_size=8)
    shapes = jax.tree.leaves(jax.eval_shape(lambda: replay.init(large, {})))
    size = sum(x.size * x.dtype.itemsize for x in shapes)
    assert 4096 * 2048 < size < 1.2 * 4096 * 2048


def test_a_side_ring_that_is_too_small_is_named() -> None:
    config = uniform.Config(capacity=4096, min_size=1, final_capacity=3)
    with pytest.raises(UserError, match=r"replay\.final_capacity is 3: it must be 0 or at least 20"):
        uniform.make(config, num_envs=4, unroll_length=4, window=1, batch_size=8)


def test_auto_decides_by_size(example) -> None:
    config = uniform.Config(capacity=64, min_size=1)
    replay = uniform.make(config, num_envs=2, unroll_length=2, window=1, batch_size=8)
    assert replay.init(example, {}).memory.finals is None
    edge = jnp.zeros(storage.LARGE_OBSERVATION, jnp.uint8)
    assert replay.init(example._replace(obs=edge, next_obs=edge), {}).memory.finals is not None
