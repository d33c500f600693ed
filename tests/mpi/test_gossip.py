"""Gossip over real ranks: equal to `sharded` where it should be, repeatable, and nobody waits."""

import numpy as np
import pytest

from jaxrl_hpc.checkpoint.checkpointer import Checkpointer
from jaxrl_hpc.checkpoint.sharded import shard_folder
from jaxrl_hpc.runtime.train import train
from tests.mpi import gossip_jobs, launch, parameter_server_jobs

pytestmark = [pytest.mark.mpi, launch.needs_mpi, pytest.mark.timeout(3600)]
RECORD = "run.record_schedule=true"
TOGETHER = "workflow.topology=complete;workflow.staleness=0"


def start(ranks, folder, *texts):
    found, _ = launch.cases("tests.mpi.gossip_jobs", ranks, folder, *texts)
    return {case: results[-1] for case, results in found.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("gossip")


@pytest.fixture(scope="module")
def three(folder):
    return start(
        3,
        folder,
        f"a2c-sgd:{TOGETHER}",
        "sharded-sgd:",
        f"a2c-adam:{TOGETHER}",
        f"a2c-ring:{RECORD};workflow.topology=ring;workflow.rate=0.5;workflow.staleness=1",
        f"dqn-random:{RECORD}",
        "dqn-again:run.replay_schedule=FOLDER/dqn-random",
        "dqn-stuck:@stuck=1",
        f"dqn-stopped:{RECORD};@signal=2:9",
        f"+dqn-stopped:{RECORD}",
        "dqn-repeated:run.replay_schedule=FOLDER/dqn-stopped",
    )


def own_leaves(folder, rank):
    return Checkpointer(shard_folder(folder / "checkpoints", rank)).load()[1]


@pytest.mark.full
def test_plain_sgd_on_the_complete_graph_is_sharded(three, folder):
    ours, sharded = (parameter_server_jobs.params(folder / name) for name in ("a2c-sgd", "sharded-sgd"))
    assert three["a2c-sgd"]["summary"]["env_steps"] == three["sharded-sgd"]["summary"]["env_steps"]
    np.testing.assert_allclose(ours, sharded, rtol=2e-4, atol=2e-5)


@pytest.mark.full
def test_after_a_full_average_replicas_are_equal_with_adam_too(three, folder):
    assert [row["consensus_distance"] for row in three["a2c-adam"]["rows"]] == [0.0] * 5
    assert [row["lag_max"] for row in three["a2c-adam"]["rows"]] == [0.0] * 5
    first, *others = (own_leaves(folder / "a2c-adam", rank) for rank in range(3))
    averaged = [name for name in first if ".central" in name]
    assert averaged
    for other in others:
        assert all((first[name] == other[name]).all() for name in averaged)


@pytest.mark.full
def test_neighbours_on_a_ring_stay_close_within_their_bound(three):
    rows = three["a2c-ring"]["rows"]
    assert all(0 < row["consensus_distance"] < 10 and row["lag_max"] <= 1 for row in rows)
    exchanges = three["a2c-ring"]["summary"]["env_steps"] // (3 * 32)
    assert three["a2c-ring"]["entries"] == [3 * exchanges] * 3  # one line of its own, two neighbours


@pytest.mark.full
@pytest.mark.parametrize("first, again", [("dqn-random", "dqn-again"), ("dqn-stopped", "dqn-repeated")])
def test_a_recorded_order_is_repeated_bit_for_bit(three, first, again):
    assert three[first]["finished"] and three[again]["finished"]
    assert three[first]["summary"]["params_sha256"] == three[again]["summary"]["params_sha256"]
    assert three[first]["rows"] == three[again]["rows"]


@pytest.mark.full
def test_nobody_waits_for_a_slow_rank(three):
    """The others make all exchanges but one of a chunk while a rank is stuck in its own."""
    assert three["dqn-stuck"]["finished"]


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_ranks(folder, three):
    start(3, folder, "dqn-grow:@signal=1:8")
    grown = start(4, folder, "+dqn-grow:")["dqn-grow"]
    assert grown["finished"] and grown["rows"][-1]["env_steps"] >= 2048
    start(3, folder, "dqn-shrink:@signal=1:8")
    shrunk = start(2, folder, "+dqn-shrink:")["dqn-shrink"]
    assert shrunk["finished"]


def test_one_rank_is_the_fused_workflow(tmp_path):
    words = ["run.total_env_steps=1024"]
    alone = gossip_jobs.config_of("a2c", words)
    fused = parameter_server_jobs.config_of("a2c", words, parameter_server_jobs.FUSED)
    for name, config in (("alone", alone), ("fused", fused)):
        train(config, tmp_path / name, say=lambda _: None)
    found = [parameter_server_jobs.params(tmp_path / name) for name in ("alone", "fused")]
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)
