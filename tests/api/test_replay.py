"""A replay alone, for any tree of arrays, on the host or inside of a program."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_hpc as rl


class Step(NamedTuple):
    frame: np.ndarray
    number: np.ndarray


EXAMPLE = Step(np.zeros((2, 3), np.uint8), np.int64(0))


def step(number: int) -> Step:
    return Step(np.full((2, 3), number % 256, np.uint8), np.int64(number))


@pytest.mark.parametrize("name", ["uniform", "prioritised", "sequence"])
def test_three_lines_and_any_tree(name):
    """Windows are consecutive items, exactly as they were added; the oldest are forgotten."""
    memory = getattr(rl.replay, name)(EXAMPLE, capacity=32, batch_size=64, window=3)
    assert isinstance(memory, rl.Replay) and memory.min_steps == 18
    state = memory.init()
    for number in range(50):
        state = memory.add(state, step(number))
    batch = memory.sample(state, jax.random.key(0))
    assert isinstance(batch.data, Step) and batch.data.frame.dtype == np.uint8
    assert batch.data.frame.shape == (3, 64, 2, 3) and batch.weight.shape == (64,)
    numbers = np.asarray(batch.data.number)
    assert (np.diff(numbers, axis=0) == 1).all() and numbers.min() >= 18 and numbers.max() <= 49
    assert (np.asarray(batch.data.frame)[..., 0, 0] == numbers).all()


def test_priorities_decide():
    memory = rl.replay.prioritised({"n": 0}, capacity=16, batch_size=256, alpha=1.0)
    state = memory.init()
    for number in range(16):
        state = memory.add(state, {"n": number}, 1e-6)
    batch = memory.sample(state, 0)
    wanted = np.where(np.asarray(batch.data["n"][0]) == 5, 1.0, 1e-9)
    state = memory.prioritise(state, batch.index, wanted)
    assert (np.asarray(memory.sample(state, 1).data["n"]) == 5).mean() > 0.99


def test_ends_of_episodes_come_from_the_entry_last():
    """Sequences within episodes: items 0 to 4 are the first, 5 to 9 the second."""
    memory = rl.replay.sequence(
        {"n": 0, "last": False}, capacity=16, batch_size=64, window=4, min_size=1, episodes="within"
    )
    state = memory.init()
    for number in range(10):
        state = memory.add(state, {"n": number, "last": number % 5 == 4})
    first = np.asarray(memory.sample(state, 0).data["n"])[0]
    assert {*first.tolist()} == {0, 1, 5, 6}


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ({}, ()),
        ({}, (1,)),
        ({}, (1, 1)),
        ({"num_envs": 4}, (4,)),
        ({"num_envs": 4}, (1, 4)),
        ({"unroll_length": 2}, (2,)),
        ({"unroll_length": 2, "num_envs": 4}, (2, 4)),
    ],
)
def test_axes_of_length_one_may_be_left_out(sizes, shape):
    memory = rl.replay.uniform(np.float32(0), capacity=64, batch_size=8, min_size=1, **sizes)
    state = memory.add(memory.init(), np.ones(shape))
    assert (np.asarray(memory.sample(state, 0).data) == 1).all()


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ({"a": 1.0}, "should have what the example has: a, b"),
        ([1.0, 2.0], "should have what the example has: a, b"),
        ({"a": np.ones(2), "b": np.ones(3)}, r"a has shape \[2\], but should have \[1, 1\] or \[1\] or \[\]"),
        ({"a": 1.0, "b": np.ones(4)}, r"b has shape \[4\], but should have \[1, 1, 3\] or \[1, 3\] or \[3\]"),
        ({"a": 1.0, "b": 1.0}, r"b has shape \[\]"),
    ],
)
def test_wrong_items_are_one_sentence(items, words):
    memory = rl.replay.uniform({"a": 0.0, "b": np.zeros(3)}, capacity=16, batch_size=4)
    with pytest.raises(rl.UserError, match=words):
        memory.add(memory.init(), items)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (((),), "has no arrays"),
        (({"a": "text"},), "numbers and arrays of numbers only"),
        (({"a": 0.0}, {"capacity": 4, "window": 8}), "replay.capacity is 4"),
        (({"a": 0.0}, {"alpha": 0.5}), "replay.alpha: unknown key"),
        (({"a": 0.0}, {"batch_size": 0}), "batch_size is 0"),
    ],
)
def test_wrong_settings_are_one_sentence(arguments, words):
    example, *settings = arguments
    with pytest.raises(rl.UserError, match=words):
        rl.replay.uniform(example, **(settings[0] if settings else {}))


def test_inside_of_a_program_as_on_the_host():
    memory = rl.replay.prioritised({"n": jnp.float32(0)}, capacity=16, batch_size=8, window=2)

    @jax.jit
    def whole(key):
        def body(i, state):
            return memory.add(state, {"n": i.astype(jnp.float32)})

        state = jax.lax.fori_loop(0, 20, body, memory.init())
        return memory.sample(state, key, 0.5)

    state = memory.init()
    for number in range(20):
        state = memory.add(state, {"n": number})
    host = memory.sample(state, jax.random.key(1), 0.5)
    inside = whole(jax.random.key(1))
    assert jax.tree.all(jax.tree.map(np.array_equal, host, inside))


def test_adding_works_in_place():
    """Without that, every item would copy the whole memory."""
    memory = rl.replay.uniform(np.zeros(1000, np.float32), capacity=1000, batch_size=4)
    state = memory.add(memory.init(), np.ones(1000))
    (rows,) = (leaf for leaf in jax.tree.leaves(state) if leaf.size > 1000)
    pointer = rows.unsafe_buffer_pointer()
    state = memory.add(state, np.ones(1000))
    (after,) = (leaf for leaf in jax.tree.leaves(state) if leaf.size > 1000)
    assert after.unsafe_buffer_pointer() == pointer and rows.is_deleted()


def test_a_loop_of_pytorch_learns_from_it():
    """Items, priorities and what is learned are tensors; a batch becomes tensors without a copy."""
    torch = pytest.importorskip("torch")
    draws = torch.Generator().manual_seed(0)
    wanted, weights = torch.tensor([1.0, -2.0, 0.5]), torch.zeros(3, requires_grad=True)
    memory = rl.replay.prioritised(
        {"x": torch.zeros(3), "y": torch.tensor(0.0)}, capacity=256, batch_size=32, min_size=1
    )
    state, optimiser = memory.init(), torch.optim.SGD([weights], lr=0.2)
    for number in range(100):
        x = torch.randn(3, generator=draws)
        state = memory.add(state, {"x": x, "y": x @ wanted})
        batch = memory.sample(state, number)
        data = {name: torch.from_dlpack(array) for name, array in batch.data.items()}
        assert data["x"].data_ptr() == batch.data["x"].unsafe_buffer_pointer()
        error = (data["x"] @ weights - data["y"])[0]
        loss = (torch.from_dlpack(batch.weight) * error**2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        state = memory.prioritise(state, batch.index, error.detach().abs())
    assert torch.allclose(weights, wanted, atol=1e-3)


def test_a_state_that_is_used_up_is_refused():
    memory = rl.replay.uniform({"a": 0.0}, capacity=16, batch_size=4)
    old = memory.init()
    state = memory.add(old, {"a": 1.0})
    for attempt in (
        lambda: memory.add(old, {"a": 1.0}),
        lambda: memory.sample(old, 0),
        lambda: memory.prioritise(old, np.zeros(4), np.ones(4)),
    ):
        with pytest.raises(rl.UserError, match="continue with what that returned"):
            attempt()
    assert memory.sample(state, 0).data["a"].shape == (1, 4)
