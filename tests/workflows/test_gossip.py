"""Gossip's parts: whom a rank averages with, what is averaged, and what a schedule holds."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runtime.build import build
from jaxrl_hpc.types import LearnerState
from jaxrl_hpc.workflows.gossip.config import Config, check_ranks
from jaxrl_hpc.workflows.gossip.replica import replicas
from jaxrl_hpc.workflows.gossip.schedule import ExchangeRecord, GossipRecorder, GossipReplay
from jaxrl_hpc.workflows.gossip.topology import average, neighbours
from tests import small


def test_neighbours_of_every_topology() -> None:
    assert neighbours("ring", 0, 5, 3, seed=1) == [1, 4]
    assert neighbours("ring", 1, 2, 3, seed=1) == [0]
    assert neighbours("complete", 1, 4, 0, seed=1) == [0, 2, 3]
    assert all(neighbours(topology, 0, 1, 0, seed=1) == [] for topology in ("ring", "random", "complete"))


def test_random_neighbours_are_drawn_alike_and_known_in_advance() -> None:
    drawn = [neighbours("random", 2, 5, exchange, seed=7) for exchange in range(4000)]
    assert drawn == [neighbours("random", 2, 5, exchange, seed=7) for exchange in range(4000)]
    counts = np.bincount([one for (one,) in drawn], minlength=5)
    assert counts[2] == 0
    np.testing.assert_allclose(counts[[0, 1, 3, 4]], 1000, atol=6 * np.sqrt(1000 * 0.75))


def test_the_mean_is_the_same_bits_for_all_who_take_it() -> None:
    vectors = np.random.default_rng(0).normal(size=(5, 1000)).astype(np.float32)
    found = [average(vectors[r], {o: vectors[o] for o in range(5) if o != r}, r, rate=1.0) for r in range(5)]
    assert all((one == found[0]).all() for one in found)
    np.testing.assert_allclose(found[0], vectors.mean(axis=0), atol=1e-6)
    half = average(vectors[0], {1: vectors[1]}, 0, rate=0.5)
    np.testing.assert_allclose(half, 0.75 * vectors[0] + 0.25 * vectors[1], atol=1e-6)
    np.testing.assert_array_equal(average(vectors[0], {}, 0, rate=1.0), vectors[0])


def test_gossip_contracts_and_keeps_the_mean_on_a_ring() -> None:
    """Both sides of every edge average: the weights are doubly stochastic, as D-PSGD assumes."""
    vectors = np.random.default_rng(1).normal(size=(6, 40)).astype(np.float32)
    mean = vectors.mean(axis=0)
    spread = [np.linalg.norm(vectors - mean)]
    for exchange in range(30):
        vectors = np.stack([
            average(vectors[r], {n: vectors[n] for n in neighbours("ring", r, 6, exchange, 0)}, r, 1.0)
            for r in range(6)
        ])  # fmt: skip
        spread.append(np.linalg.norm(vectors - mean))
    np.testing.assert_allclose(vectors.mean(axis=0), mean, atol=1e-5)
    second = (1 + 2 * np.cos(2 * np.pi / 6)) / 3  # second eigenvalue of the ring's weights
    assert all(b <= second * a + 1e-4 for a, b in itertools.pairwise(spread))


@pytest.mark.parametrize("moments", [True, False])
def test_what_is_averaged_is_installed_again(moments: bool) -> None:
    opt = {"count": jnp.int32(3), "mu": jnp.arange(3.0)}
    state = LearnerState(
        {"w": jnp.ones((2, 2))}, {"w": jnp.zeros((2, 2))}, opt, {}, (), jnp.int32(5), jnp.float32(0)
    )
    scheme, number = replicas(None, jax.eval_shape(lambda: state), moments)  # type: ignore[arg-type]
    assert number == 4 and scheme.size == (11 if moments else 4)
    vector = scheme.first(state)
    found = scheme.install(state, 2 * vector)
    np.testing.assert_array_equal(found.params["w"], 2 * np.ones((2, 2)))
    np.testing.assert_array_equal(found.opt["mu"], (2 if moments else 1) * np.arange(3.0))
    assert int(found.opt["count"]) == 3 and int(found.step) == 5


def test_a_schedule_says_who_read_what(tmp_path) -> None:
    reads: list[list[dict[int, int | None]]] = [[{1: 1}, {1: 2}, {1: None}], [{0: 1}, {0: 3}]]
    for rank, exchanges in enumerate(reads):
        recorder = GossipRecorder(tmp_path, rank, 0, degree=1)
        for number, versions in enumerate(exchanges):
            recorder.add(number, ExchangeRecord(2 * number + rank, versions))
        recorder.flush()
    first, second = (GossipReplay(str(tmp_path), rank, [0, 0], degree=1) for rank in range(2))
    assert first.shares(0, 3) == [0, 2] and second.shares(0, 4) == [1, 3]
    assert first.exchange(2) == ExchangeRecord(4, {1: None})
    assert [first.reads_before(v) for v in (1, 2, 3, 5)] == [0, 0, 1, 2]
    later = GossipReplay(str(tmp_path), 0, [0, 1], degree=1)
    assert later.reads_before(5) == 1, "what was read before this job is not waited for"
    with pytest.raises(UserError, match="another topology or number of ranks"):
        GossipReplay(str(tmp_path), 0, [0, 0], degree=2)


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(UserError, match="use random or ring beyond 64 ranks"):
        check_ranks(Config(topology="complete"), 65)
    config = small.config(replay={"name": "uniform"}, workflow={"name": "gossip", "actor_priorities": True})
    with pytest.raises(UserError, match="would ignore them"):
        build(config)
