"""Exactness, cost, structure and memory of checkpoints."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.checkpoint import blocks
from jaxrl_hpc.checkpoint.checkpointer import Checkpointer, state_bytes
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.types import Ring
from tests.checkpoint.checkpoint_state import ring_at, rows, state_at


@pytest.fixture(autouse=True)
def no_sync(monkeypatch) -> None:
    """Durability against power loss is not what these tests look at, and the disk is slow."""
    monkeypatch.setattr(blocks.os, "fsync", lambda handle: None)


def assert_same(a, b):
    leaves_a, structure_a = jax.tree.flatten(a)
    leaves_b, structure_b = jax.tree.flatten(b)
    assert structure_a == structure_b
    for x, y in zip(leaves_a, leaves_b, strict=True):
        if jnp.issubdtype(getattr(x, "dtype", np.dtype(float)), jax.dtypes.prng_key):
            assert x.dtype == y.dtype
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        x, y = np.asarray(x), np.asarray(y)
        assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())


def mixed_state():
    return {
        "float": jnp.asarray([np.nan, -0.0, np.inf, 1e-45], jnp.float32),
        "half": jnp.arange(7, dtype=jnp.bfloat16),
        "flag": jnp.asarray([True, False]),
        "empty": jnp.zeros((0, 3)),
        "key": jax.random.key(7),
        "keys": jax.random.split(jax.random.key(7, impl="rbg"), (2, 3)),
        "numpy scalar": np.float64(0.1),
        "python": (3, 2.5, None, ()),
        "large": jnp.asarray(np.random.default_rng(0).normal(size=(300, 1001)), jnp.float32),
        "large keys": jax.random.split(jax.random.key(1), 40_000),
        "strided": np.arange(200_000).reshape(400, 500).T,
    }


def test_every_kind_of_leaf_comes_back_bit_for_bit(tmp_path: Path) -> None:
    state, host = mixed_state(), {"env_steps": 2**40, "x": 0.1, "list": [1, "ü"], "none": None}
    Checkpointer(tmp_path).save(12, state, host)
    step, restored, restored_host = Checkpointer(tmp_path).restore(state)
    assert (step, restored_host) == (12, host)
    assert_same(jax.tree.map(jnp.asarray, restored), jax.tree.map(jnp.asarray, state))
    assert restored["numpy scalar"].dtype == np.float64 and restored["strided"].flags.writeable


def test_like_may_be_abstract_and_place_is_applied(tmp_path: Path) -> None:
    def make():
        return {
            "key": jax.random.key(1),
            "x": jnp.ones((3,)),
            "r": Ring({"a": jnp.zeros((4, 2))}, jnp.int32(0)),
        }

    Checkpointer(tmp_path).save(0, make(), {})
    _, restored, _ = Checkpointer(tmp_path).restore(jax.eval_shape(make), place=jnp.array)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(restored))
    assert_same(restored, make())


def test_a_save_that_fails_leaves_a_checkpointer_that_works(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path)
    with pytest.raises(TypeError, match="JSON"):
        checkpointer.save(0, state_at(0), {"not JSON": object()})
    checkpointer.save(1, state_at(1), {})
    assert checkpointer.latest() == 1


@pytest.mark.parametrize("deltas", [[1] * 60, [0, 37, 0, 499, 500, 501, 1700, 3] * 4, [13, 400] * 30])
@pytest.mark.parametrize("reopen", [False, True])
def test_ring_wraps_many_times_between_and_over_saves(
    tmp_path: Path, deltas: list[int], reopen: bool
) -> None:
    checkpointer, written = Checkpointer(tmp_path), 0
    for step, delta in enumerate(deltas):
        written += delta
        expected = {"ring": ring_at(written, 500)}
        checkpointer.save(step, expected, {})
        if reopen or step % 7 == 0:
            checkpointer = Checkpointer(tmp_path)
            assert_same(checkpointer.restore(expected)[1], expected)
    assert_same(Checkpointer(tmp_path).restore(expected)[1], expected)


def test_ring_with_leading_axes_of_unequal_counts(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path)
    for step in range(12):
        rings = [[ring_at(step * (3 + 5 * i + 11 * j), 40) for j in range(3)] for i in range(2)]
        flat = [ring for line in rings for ring in line]
        stacked = jax.tree.map(lambda *x: np.stack(x).reshape(2, 3, *x[0].shape), *flat)
        checkpointer.save(step, stacked, {})
        assert_same(Checkpointer(tmp_path).restore(stacked)[1], stacked)


def test_cost_grows_with_changes_not_with_capacity(tmp_path: Path) -> None:
    bytes_written = {}
    for slots in (4_000, 400_000):
        checkpointer = Checkpointer(tmp_path / str(slots))
        ring = ring_at(1000, slots)
        saved = [checkpointer.save(0, ring, {}).data_bytes]
        for step in range(1, 12):
            ring = Ring({k: v.copy() for k, v in ring.data.items()}, np.int32(1000 + 100 * step))
            for name, new in rows(900 + 100 * step, 1000 + 100 * step).items():
                ring.data[name][900 + 100 * step : 1000 + 100 * step] = new
            saved.append(checkpointer.save(step, ring, {}).data_bytes)
        bytes_written[slots] = saved
        assert_same(Checkpointer(tmp_path / str(slots)).restore(ring)[1], ring)
    assert bytes_written[4_000] == bytes_written[400_000]
    row = 21  # bytes
    # the first two stand alone, the others build on the last but one: 200 new rows, and the blank row
    assert bytes_written[4_000][:4] == [1000 * row + row, 1100 * row + row, 200 * row + row, 200 * row + row]


def test_merging_keeps_files_few_and_rows_are_rewritten_rarely(tmp_path: Path) -> None:
    slots, delta, saves, row = 8_000, 20, 1200, 21
    ring, checkpointer, total, most_files = ring_at(0, slots), Checkpointer(tmp_path), 0, 0
    for step in range(saves):
        first, end = step * delta, (step + 1) * delta
        for name, new in rows(first, end).items():
            ring.data[name][np.arange(first, end) % slots] = new
        ring = Ring(ring.data, np.int32(end))
        total += checkpointer.save(step, ring, {}).data_bytes
        most_files = max(most_files, sum(1 for _ in tmp_path.glob("*.rows")))
    assert most_files <= 40
    assert (
        total < 6 * saves * delta * row
    )  # every second checkpoint log_8(200) + 1 = 3.5 times, at most twice that
    assert_same(Checkpointer(tmp_path).restore(ring)[1], ring_at(end, slots))


def test_only_changed_blocks_are_written_and_space_is_bounded(tmp_path: Path) -> None:
    large = np.zeros((64, 256 * 1024), np.uint8)  # 64 blocks
    large[:] = np.arange(64, dtype=np.uint8)[:, None]
    checkpointer = Checkpointer(tmp_path)
    assert checkpointer.save(0, {"x": large}, {}).data_bytes == large.nbytes
    assert checkpointer.save(1, {"x": large}, {}).data_bytes == large.nbytes  # shares nothing with the first
    assert checkpointer.save(2, {"x": large}, {}).data_bytes == 0
    for step in range(3, 150):
        large[step % 64] += 1
        written = checkpointer.save(step, {"x": large}, {}).data_bytes
        assert written >= 256 * 1024
        assert sum(path.stat().st_size for path in tmp_path.glob("*.arrays")) < 5 * large.nbytes
        assert sum(1 for _ in tmp_path.glob("*.arrays")) <= 36
    assert_same(Checkpointer(tmp_path).restore({"x": large})[1], {"x": large})


def test_keep_and_latest(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, keep=3)
    assert checkpointer.latest() is None
    with pytest.raises(UserError, match="there is no checkpoint"):
        checkpointer.restore(state_at(0))
    for step in range(6):
        checkpointer.save(10 * step, state_at(step), {"step": step})
    assert checkpointer.steps() == [30, 40, 50] and checkpointer.latest() == 50
    step, state, host = Checkpointer(tmp_path).restore(state_at(0), step=40)
    assert (step, host) == (40, {"step": 4})
    assert_same(state, state_at(4))
    with pytest.raises(UserError, match="no checkpoint of iteration 20"):
        checkpointer.restore(state_at(0), step=20)


def test_going_back_to_an_older_checkpoint_starts_a_new_branch(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, keep=3)
    for step in range(4):
        checkpointer.save(step, state_at(step), {})
    checkpointer = Checkpointer(tmp_path, keep=3)
    checkpointer.restore(state_at(0), step=2)
    changed = state_at(2)
    changed["seed0"]["w"] += 1
    checkpointer.save(2, changed, {})
    assert checkpointer.steps() == [1, 2, 2]
    assert_same(Checkpointer(tmp_path).restore(changed)[1], changed)


@pytest.mark.parametrize(
    ("seed", "leaf", "value", "message"),
    [
        ("seed0", "w", np.zeros((3, 3)), r"state['seed0']['w'] is float64[3, 2], not float64[3, 3]"),
        ("seed0", "w", np.zeros((3, 2), np.float32), r"['w'] is float64[3, 2], not float32[3, 2]"),
        ("seed0", "more", np.zeros(1), r"has no state['seed0']['more']"),
        ("seed0", "w", None, r"has state['seed0']['w'], which this run does not have"),
        ("seed1", "replay", ring_at(0, 501), r"['replay'].data['last'] is bool[500], not bool[501]"),
        ("seed1", "count", jax.random.key(0), r"['count'] is int32[], not key"),
    ],
)
def test_another_structure_is_refused_by_the_name_of_the_leaf(
    tmp_path: Path, seed: str, leaf: str, value, message: str
) -> None:
    Checkpointer(tmp_path).save(0, state_at(0), {})
    like = state_at(0)
    like[seed][leaf] = value
    with pytest.raises(UserError, match=re.escape(message)):
        Checkpointer(tmp_path).restore(like)


def test_load_gives_leaves_by_path(tmp_path: Path) -> None:
    Checkpointer(tmp_path).save(5, {"shard 3": {"key": jax.random.key(2), "ring": ring_at(10, 20)}}, {"a": 1})
    step, leaves, host = Checkpointer(tmp_path).load()
    assert (step, host) == (5, {"a": 1})
    assert set(leaves) == {
        f"['shard 3']{end}"
        for end in ("['key']", "['ring'].data['obs']", "['ring'].data['last']", "['ring'].written")
    }
    assert leaves["['shard 3']['key']"] == jax.random.key(2)


def test_state_bytes_counts_what_the_arrays_hold() -> None:
    state = mixed_state()
    held = [leaf for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array)]
    numpy_bytes = sum(
        np.asarray(leaf).nbytes for leaf in jax.tree.leaves(state) if not isinstance(leaf, jax.Array)
    )
    assert state_bytes(state) == sum(leaf.nbytes for leaf in held) + numpy_bytes
    assert state_bytes(jax.eval_shape(lambda: {"k": jax.random.split(jax.random.key(0), 5)})) == 40
