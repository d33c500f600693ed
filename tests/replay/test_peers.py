"""The same priorities in flashbax and cpprb are sampled alike."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxrl_hpc.replay import kernels, sum_tree

SIZE, BATCH, ROUNDS = 256, 512, 100


@pytest.fixture(scope="module")
def priorities() -> np.ndarray:
    return np.random.default_rng(5).exponential(size=SIZE).astype(np.float32) + 0.3


@pytest.fixture(scope="module")
def ours(priorities) -> np.ndarray:
    shape = sum_tree.layout(SIZE, 8)
    tree = sum_tree.build(shape, jnp.asarray(priorities))
    sample = jax.jit(kernels.operations(shape, "auto", number=BATCH, stratified=False).sample)
    keys = jax.random.split(jax.random.key(0), ROUNDS)
    return np.bincount(np.concatenate([sample(tree, sum_tree.seed(key))[0] for key in keys]), minlength=SIZE)


def assert_alike(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert stats.chi2_contingency(np.stack([ours, theirs])).pvalue > 1e-4


def test_flashbax(priorities, ours) -> None:
    flashbax = pytest.importorskip("flashbax.buffers.sum_tree")
    state = flashbax.init(SIZE)
    state = flashbax.set_batch_bincount(state, jnp.arange(SIZE), jnp.asarray(priorities))
    sample = jax.jit(lambda key: flashbax.stratified_sample(state, BATCH, key))
    keys = jax.random.split(jax.random.key(1), ROUNDS)
    drawn = np.concatenate([np.asarray(sample(key)) for key in keys])
    assert_alike(ours, np.bincount(drawn, minlength=SIZE))


def test_cpprb(priorities, ours) -> None:
    cpprb = pytest.importorskip("cpprb")
    buffer = cpprb.PrioritizedReplayBuffer(SIZE, {"value": {}}, alpha=1.0, eps=0.0)
    buffer.add(value=np.arange(SIZE, dtype=np.float32), priorities=priorities)
    np.random.seed(0)  # noqa: NPY002 (the library draws from a generator of its own or from this one)
    drawn = np.concatenate([buffer.sample(BATCH, beta=0.0)["indexes"].copy() for _ in range(ROUNDS)])
    assert_alike(ours, np.bincount(drawn, minlength=SIZE))
