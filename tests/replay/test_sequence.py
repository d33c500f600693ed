"""Which sequences are sampled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.replay import sequence, sum_tree
from jaxrl_hpc.schema import traced_values

T, B, CAPACITY = 4, 2, 48


@pytest.mark.parametrize(("episodes", "stride"), [("across", 1), ("across", 3), ("within", 1), ("within", 2)])
def test_sequences_start_where_they_should(episodes, stride, unroll, example) -> None:
    window, every, slots = 5, 7, CAPACITY // B
    config = sequence.Config(capacity=CAPACITY, min_size=1, stride=stride, episodes=episodes)
    replay = sequence.make(config, num_envs=B, unroll_length=T, window=window, batch_size=16)
    state = replay.init(example, {k: jnp.float32(v) for k, v in traced_values(config).items()})
    add = jax.jit(lambda s, u: replay.add(s, u, None))
    shape = sum_tree.layout(CAPACITY, 8)
    for turn in range(14):
        state = add(state, unroll(turn * T, T, B, every))
        written = (turn + 1) * T
        last = np.asarray(unroll(0, written, B, every).last)
        expected = {
            (t % slots) * B + b
            for t in range(max(written - slots, 0), written - window + 1)
            for b in range(B)
            if t % stride == 0 and (episodes == "across" or not last[t : t + window - 1, b].any())
        }
        alive = np.flatnonzero(np.asarray(sum_tree.leaves(shape, state.tree)))
        assert set(alive.tolist()) == expected
    batch = replay.sample(state, jax.random.key(0), jnp.float32(1))
    assert set(np.asarray(batch.index).tolist()) <= expected
    assert batch.data.extras.shape == (window, 16)  # the stored carry of every step


def test_no_sequence_no_weight(unroll, example) -> None:
    config = sequence.Config(capacity=CAPACITY, min_size=1, episodes="within")
    replay = sequence.make(config, num_envs=B, unroll_length=T, window=5, batch_size=16)
    state = replay.init(example, {k: jnp.float32(v) for k, v in traced_values(config).items()})
    state = replay.add(state, unroll(0, T, B, 2), None)
    batch = replay.sample(state, jax.random.key(0), jnp.float32(0))
    np.testing.assert_array_equal(batch.weight, 0.0)
