"""Which sequences are sampled, and the queue's order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.replay import fifo, sequence, sum_tree
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


def test_the_queue_gives_each_unroll_once_in_order(unroll, example) -> None:
    config = fifo.Config(depth=3, unrolls=2)
    replay = fifo.make(config, num_envs=B, unroll_length=T, window=1, batch_size=0)
    state = replay.init(example, {})
    add = jax.jit(lambda s, u: replay.add(s, u, None))
    sample = jax.jit(lambda s: replay.sample(s, jax.random.key(0), jnp.float32(0)))
    queue: list[int] = []
    for turn, adds in enumerate([1, 1, 1, 4, 0, 2, 1, 1]):
        for _ in range(adds):
            number = int(state.ring.written) // T
            state = add(state, unroll(number * T, T, B))
            queue = [*queue, number][-3:]  # a full queue drops its oldest
        assert bool(replay.ready(state)) == (len(queue) >= 2), turn
        if len(queue) < 2:
            continue
        batch = sample(state)
        times = np.asarray(batch.data.obs["stamp"])[0, ::B, 0] // T
        assert times.tolist() == queue[:2]
        whole = [unroll(number * T, T, B) for number in queue[:2]]
        for got, *parts in zip(jax.tree.leaves(batch.data), *map(jax.tree.leaves, whole), strict=True):
            np.testing.assert_array_equal(got, np.concatenate(parts, axis=1))
        state = replay.prioritise(state, batch.index, jnp.zeros(()))
        queue = queue[2:]


def test_a_batch_larger_than_the_queue_is_refused() -> None:
    with pytest.raises(UserError, match=r"replay\.unrolls is 2"):
        fifo.make(fifo.Config(depth=1, unrolls=2), num_envs=1, unroll_length=1, window=1, batch_size=0)
