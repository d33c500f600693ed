"""Collectives that sleep while they wait: the same bits as mpi4jax's, alone and in whole runs."""

import pytest

from jaxrl_hpc.comm import polling
from tests.mpi import launch

pytestmark = [
    pytest.mark.mpi,
    launch.needs_mpi,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not polling.LIBRARY.exists(), reason="libpolling.so is not compiled"),
]


def test_bits_are_those_of_mpi4jax():
    status, output = launch.run(3, "-m", "tests.mpi.polling_ranks")
    assert status == 0, output
    (found,) = launch.results(output)
    assert len(found["same"]) == 3 and found["cpu_within"]
    for rank in found["same"]:
        assert rank and all(rank.values()), found


@pytest.mark.full
@pytest.mark.parametrize("case", ["dqn", "a2c"])
def test_a_run_with_several_learners_has_the_same_bits(tmp_path, case):
    """A recorded schedule, repeated by ranks that wait in the other way."""
    two = "workflow.learners=2;workflow.learner_mode=" + ("shared" if case == "dqn" else "own")
    results, _ = launch.cases(
        "tests.mpi.actor_learner_jobs",
        4,
        tmp_path,
        f"{case}-spin:{two};workflow.waiting=spin;run.record_schedule=true;run.total_env_steps=1024",
        f"{case}-sleep:{two};workflow.waiting=sleep;run.replay_schedule=FOLDER/{case}-spin;"
        "run.total_env_steps=1024",
    )
    (spin,), (sleep,) = results[f"{case}-spin"], results[f"{case}-sleep"]
    assert (spin["summary"]["waiting"], sleep["summary"]["waiting"]) == ("spin", "sleep")
    assert spin["summary"]["ranks_per_core"] > 0
    assert spin["params"] == sleep["params"]
