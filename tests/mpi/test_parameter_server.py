"""Parameter servers: one worker is the fused workflow; several are repeatable, and count their lag."""

import numpy as np
import pytest

from jaxrl_hpc.checkpoint.checkpointer import Checkpointer
from jaxrl_hpc.checkpoint.sharded import shard_folder
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runtime.train import train
from tests.mpi import launch, parameter_server_jobs

pytestmark = [pytest.mark.mpi, launch.needs_mpi, pytest.mark.timeout(3600)]
RECORD = "run.record_schedule=true"


def start(ranks, folder, *texts):
    found, _ = launch.cases("tests.mpi.parameter_server_jobs", ranks, folder, *texts)
    return {case: results[-1] for case, results in found.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("shop")


@pytest.fixture(scope="module")
def two(folder):
    again = "a2c-again:run.replay_schedule=FOLDER/a2c-lock;workflow.local_updates=2"
    return start(2, folder, f"a2c-lock:{RECORD};workflow.local_updates=2", again)


@pytest.fixture(scope="module")
def three(folder):
    return start(
        3,
        folder,
        f"dqn-lock:{RECORD};workflow.replay=global;workflow.local_updates=2",
        "dqn-again:run.replay_schedule=FOLDER/dqn-lock;workflow.replay=global;workflow.local_updates=2",
        f"a2c-server:{RECORD};workflow.rule=server;workflow.optimiser=server;@signal=2:20",
        f"+a2c-server:{RECORD};workflow.rule=server;workflow.optimiser=server",
    )


@pytest.mark.parametrize(
    "case, changes",
    [
        ("a2c", ("workflow.optimiser=server",)),
        pytest.param("dqn", (), marks=pytest.mark.slow),
    ],
)
def test_one_worker_is_the_fused_workflow(tmp_path, case, changes):
    for name, flow in (("fused", parameter_server_jobs.FUSED), ("alone", parameter_server_jobs.FLOW)):
        words = [*(changes if name == "alone" else ()), "run.total_env_steps=1024"]
        outcome = train(
            parameter_server_jobs.config_of(case, words, flow), tmp_path / name, say=lambda _: None
        )
        assert outcome.summary["env_steps"] == 1024
    fused, alone = (parameter_server_jobs.params(tmp_path / name) for name in ("fused", "alone"))
    # rounding: a change is added to what it was taken from, and an optimiser step is a program of its own
    np.testing.assert_allclose(alone, fused, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_recorded_order_is_repeated_bit_for_bit(two):
    first, again = two["a2c-lock"], two["a2c-again"]
    assert first["summary"]["params_sha256"] == again["summary"]["params_sha256"]
    assert [row["lag_mean"] for row in first["rows"]] == [row["lag_mean"] for row in again["rows"]]
    assert len(first["entries"]) == 2 and sum(first["entries"]) == 2048 // 64
    assert max(row["lag_max"] for row in first["rows"]) >= 1


@pytest.mark.slow
def test_workers_have_the_statistics_of_all(two, folder):
    """What normalises observations, in the last checkpoint of both."""
    assert two["a2c-lock"]["finished"]
    found = []
    for worker in range(2):
        _, leaves, _ = Checkpointer(shard_folder(folder / "a2c-lock" / "checkpoints", worker)).load()
        known = {name: x for name, x in leaves.items() if ".learner.aux" in name and "observation" in name}
        found.append(known)
        assert len(known) == 3
        assert next(x for name, x in known.items() if "number" in name) == 2048  # steps of both
    assert all((x == found[1][name]).all() for name, x in found[0].items())


@pytest.mark.slow
def test_a_replay_of_all_workers_is_repeated_bit_for_bit(three):
    first, again = three["dqn-lock"], three["dqn-again"]
    assert first["summary"]["params_sha256"] == again["summary"]["params_sha256"]
    assert [row["lag_mean"] for row in first["rows"]] == [row["lag_mean"] for row in again["rows"]]
    exchanges = sum(first["entries"])
    assert len(first["entries"]) == 3 and min(first["entries"]) > 0
    warmup = 3 * 96  # three workers fill a replay each: 64 steps and a window, in unrolls of 32
    assert first["summary"]["env_steps"] == warmup + exchanges * 2 * 32


@pytest.mark.slow
def test_a_server_passes_a_signal_on_and_the_run_goes_on_where_it_stopped(three):
    result = three["a2c-server"]
    assert result["finished"] and result["summary"]["env_steps"] == 2048
    assert result["entries"] == [2048 // 32] and result["summary"]["updates"] == 2048 // 32


@pytest.mark.parametrize(
    "changes, message",
    [
        (["workflow.rule=hogwild", "workflow.optimiser=server"], "can only add changes"),
        (["workflow.servers=2"], "use workflow.rule=server"),
        (["workflow.workers=3"], "workflow.workers=3 do not fit a job of 1 rank"),
        (["workflow.rule=hogwild", RECORD], "hogwild's stores race by design"),
    ],
)
def test_what_cannot_be_is_said(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        train(parameter_server_jobs.config_of("dqn", changes), tmp_path / "run", say=lambda _: None)


@pytest.mark.slow
def test_all_rules_learn_drop_what_is_old_and_change_their_size(folder):
    results = start(
        3,
        folder,
        "dqn-hogwild:workflow.rule=hogwild",
        f"dqn-accumulate:{RECORD};workflow.rule=accumulate",
        "dqn-accumulated:run.replay_schedule=FOLDER/dqn-accumulate;workflow.rule=accumulate",
        "dqn-old:workflow.max_lag=0",
        "dqn-grow:@signal=1:8",
    )
    same = [results[name]["summary"]["params_sha256"] for name in ("dqn-accumulate", "dqn-accumulated")]
    assert same[0] == same[1]
    dropped = {name: sum(row["dropped_changes"] for row in found["rows"]) for name, found in results.items()}
    assert dropped["dqn-old"] > 0 and dropped["dqn-hogwild"] == 0
    assert not results["dqn-grow"]["finished"]
    grown = start(4, folder, "+dqn-grow:")["dqn-grow"]
    assert grown["finished"] and grown["rows"][-1]["env_steps"] >= 2048
    sharded = start(4, folder, f"dqn-shards:{RECORD};workflow.rule=server;workflow.servers=2")["dqn-shards"]
    assert len(sharded["entries"]) == 2 and len(set(sharded["entries"])) == 1
