"""Which shards live where, what collectives give on one device, and who is blamed when copies differ."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.comm.collectives import Collectives, compare_replicas, fingerprint, ordered_sum
from jaxrl_hpc.comm.layout import Layout, choose_devices, make_layout
from jaxrl_hpc.comm.ranks import Ranks, launched_size
from jaxrl_hpc.errors import UserError


def fake(platform, count):
    return [SimpleNamespace(platform=platform, id=i) for i in range(count)]


@pytest.mark.parametrize(
    "found, wanted, local_rank, local_size, expected",
    [
        (fake("cpu", 4), 0, 0, 1, [0]),
        (fake("cpu", 4), 3, 1, 2, [0, 1, 2]),  # host devices belong to their process
        (fake("gpu", 4), 0, 0, 1, [0, 1, 2, 3]),
        (fake("gpu", 4), 0, 2, 4, [2]),  # one rank per GPU
        (fake("gpu", 4), 0, 1, 2, [2, 3]),
        (fake("gpu", 1), 0, 3, 4, [0]),  # the launcher shows each rank its own GPU
        (fake("gpu", 8), 1, 1, 2, [4]),
    ],
)
def test_ranks_of_a_node_share_out_its_accelerators(found, wanted, local_rank, local_size, expected):
    assert [d.id for d in choose_devices(found, wanted, local_rank, local_size)] == expected


def test_layouts_that_do_not_fit_are_refused():
    ranks = Ranks()
    with pytest.raises(UserError, match=r"workflow.devices is 2, but this process has 1: start fewer ranks"):
        choose_devices(fake("gpu", 4), 2, 0, 4)
    assert make_layout(12, 0, ranks).local == 12
    ranks.size = 5
    with pytest.raises(UserError, match=r"a multiple of ranks × devices = 5 × 1"):
        make_layout(12, 0, ranks)


def test_every_shard_is_held_once():
    for count in (1, 2, 3, 4, 6, 12):
        held = [range(x.first, x.first + x.local) for x in (Layout(12, count, r, (0,)) for r in range(count))]
        assert sorted(shard for part in held for shard in part) == list(range(12))
        for rank, part in enumerate(held):
            assert {Layout(12, count, 0, (0,)).rank_of(shard) for shard in part} == {rank}


@pytest.mark.parametrize("deterministic", [True, False])
def test_collectives_on_one_device(deterministic):
    collectives = Collectives(Layout(5, 1, 0, (jax.devices()[0],)), None, deterministic)
    rng = np.random.default_rng(0)
    tree = {"a": rng.normal(size=(5, 3, 2)).astype(np.float32), "b": rng.normal(size=5).astype(np.float32)}
    added = jax.jit(lambda t: collectives("add", t))(tree)
    for name in tree:
        np.testing.assert_allclose(added[name], tree[name].sum(axis=0), rtol=1e-5)
    bits = {"x": np.float32([np.nan, -0.0, 1e-42, np.inf, 7.0]), "i": np.arange(5, dtype=np.int32)}
    gathered = jax.jit(lambda t: collectives("gather", t))(bits)
    for name in bits:
        np.testing.assert_array_equal(np.asarray(gathered[name]).view(np.uint32), bits[name].view(np.uint32))
    words = rng.integers(0, 2**32, size=(5, 4), dtype=np.uint32)
    total = jax.jit(lambda t: collectives("total", t))(words)
    np.testing.assert_array_equal(total, words.astype(np.uint64).sum(axis=0).astype(np.uint32))
    assert collectives("add", ()) == ()


def test_ordered_sum_keeps_the_order():
    terms = np.float32([1e8, 1.0, -1e8, 1.0])  # any other order gives another result
    assert ordered_sum(jnp.asarray(terms)) == 1.0
    many = np.random.default_rng(1).normal(size=(40, 7)).astype(np.float32)
    expected = many[0]
    for term in many[1:]:
        expected = expected + term
    np.testing.assert_array_equal(jax.jit(ordered_sum)(many), expected)


def test_a_fingerprint_sees_every_bit():
    tree = {"w": np.linspace(-1, 1, 50, dtype=np.float32), "n": np.int32(3), "flag": np.bool_(True)}
    mark = fingerprint(tree)
    seen = {int(mark)}
    for word in range(50):
        for bit in range(32):
            changed = tree["w"].copy()
            changed.view(np.uint32)[word] ^= np.uint32(1 << bit)
            if bit in (0, 31) or word in (0, 49):
                assert fingerprint(tree | {"w": changed}) != mark
    seen.add(int(fingerprint(tree | {"flag": np.bool_(False)})))
    seen.add(int(fingerprint(tree | {"n": np.int32(2)})))
    assert len(seen) == 3


def test_the_odd_one_out_is_named():
    layout = Layout(12, 3, 0, (0, 1))
    marks = np.full(12, 7, np.uint32)
    compare_replicas(layout, marks)
    marks[6:8] = 8  # second device of rank 1
    with pytest.raises(RuntimeError, match=r"rank 1 device 1 from rank 0"):
        compare_replicas(layout, marks)
    marks[:] = 7
    marks[:4] = 9  # the odd one may be rank 0
    with pytest.raises(RuntimeError, match=r"rank 0 device 0, rank 0 device 1 from rank 1"):
        compare_replicas(layout, marks)


@pytest.mark.parametrize(
    "variables, size",
    [
        ({}, 1),
        ({"PMI_SIZE": "4"}, 4),
        ({"OMPI_COMM_WORLD_SIZE": "3"}, 3),
        ({"PMIX_RANK": "0", "SLURM_STEP_NUM_TASKS": "8"}, 8),
        ({"SLURM_STEP_NUM_TASKS": "8"}, 1),  # srun without MPI: separate processes
    ],
)
def test_the_launcher_says_how_many(monkeypatch, variables, size):
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMIX_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launched_size() == size


def test_a_job_of_one_needs_nobody():
    ranks = Ranks()
    assert ranks.first and ranks.share("x") == "x" and ranks.first_does(lambda: 3) == 3
    np.testing.assert_array_equal(ranks.everyone(1, 2), [[1, 2]])
    with pytest.raises(UserError, match=r"^wrong$"), ranks.guard():
        ranks.all_succeed(lambda: (_ for _ in ()).throw(UserError("wrong")))
    ranks.size = 3
    assert ranks.summary_of([None, "full", "full"]) == "rank 1, 2: full"
    assert ranks.summary_of(["same", "same", "same"]) == "same"
