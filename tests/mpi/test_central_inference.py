"""Central inference and parallel Dyna on real ranks: as `fused` in lock-step, repeatable, resumable."""

import numpy as np
import pytest

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.metrics.parquet import read_metrics
from jaxrl_hpc.runtime.train import train
from tests.mpi import actor_learner_jobs, launch, parameter_server_jobs

pytestmark = [pytest.mark.mpi, launch.needs_mpi, pytest.mark.timeout(3600)]
SEED = "workflow.name=central_inference"
DYNA = "workflow.name=dyna;agent.name=dyna_q"
RECORD = "run.record_schedule=true"


def start(ranks, folder, *texts):
    return launch.cases("tests.mpi.actor_learner_jobs", ranks, folder, *texts)[0]


def as_fused(folder, name, *changes):
    """The run of a lock-step case beside the fused one."""
    config = actor_learner_jobs.config_of(name, ["workflow.name=fused", *changes])
    train(config, folder / f"{name}-fused", say=lambda _: None)
    ours, fused = (parameter_server_jobs.params(folder / each) for each in (name, f"{name}-fused"))
    # rounding: acting and learning are programs of their own
    np.testing.assert_allclose(ours, fused, rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_in_lock_step_the_server_computes_what_fused_does(tmp_path):
    start(2, tmp_path, f"a2c-lock:{SEED};workflow.lockstep=true;run.total_env_steps=1024")
    as_fused(tmp_path, "a2c-lock", "run.total_env_steps=1024")
    rows = [row for row in read_metrics(tmp_path / "a2c-lock").to_pylist() if row["kind"] == "train"]
    assert all(row["lag_max"] == 0 for row in rows)
    assert sum(row["inference_answers"] for row in rows) >= 1024 // 4 - 8


@pytest.mark.slow
def test_a_recorded_run_is_repeated_and_checkpoints_disturb_nothing(tmp_path):
    found = start(
        3,
        tmp_path,
        f"a2c-record:{SEED};{RECORD};run.total_env_steps=1024",
        f"a2c-replay:{SEED};run.replay_schedule=FOLDER/a2c-record;run.total_env_steps=1024",
        f"a2c-saved:{SEED};run.checkpoint_seconds=0.2",
    )
    first, again = (found[name][0]["summary"]["params_sha256"] for name in ("a2c-record", "a2c-replay"))
    assert first == again
    saved = found["a2c-saved"][0]
    assert saved["finished"] and saved["lost"] == 0 and saved["taken"] == 2048 // 32


@pytest.mark.slow
def test_dyna_in_lock_step_and_with_several_planners(tmp_path):
    start(2, tmp_path, f"dqn-lock:{DYNA};workflow.lockstep=true")
    as_fused(tmp_path, "dqn-lock", "agent.name=dyna_q")
    more = f"{DYNA};workflow.learners=2;workflow.max_updates=6"
    found = start(
        3, tmp_path, f"dqn-plan:{more};{RECORD}", f"dqn-again:{more};run.replay_schedule=FOLDER/dqn-plan"
    )
    first, again = (found[name][0]["summary"]["params_sha256"] for name in ("dqn-plan", "dqn-again"))
    assert first == again
    rows = [row for row in read_metrics(tmp_path / "dqn-plan").to_pylist() if row["kind"] == "train"]
    assert all(2 <= row["samples_per_unroll"] <= 6 for row in rows)


@pytest.mark.slow
def test_simulators_outside_of_the_program_live_on_the_environment_ranks(tmp_path):
    """Gymnasium's own CartPole: every step is learned from, and episodes are as long as at random."""
    outside = "env.name=gymnasium;env.id=CartPole-v1;run.total_env_steps=4096"
    (found,) = start(3, tmp_path, f"a2c-outside:{SEED};{outside}")["a2c-outside"]
    assert found["finished"] and found["lost"] == 0 and found["taken"] == 4096 // 32
    episodes = sum(row["episodes"] for row in found["rows"])
    steps = sum(row["episodes"] * row["episode_length"] for row in found["rows"] if row["episodes"])
    assert 15 < steps / episodes < 40  # 22 on average for random play
    (found,) = start(3, tmp_path, f"a2c-broken:{SEED};{actor_learner_jobs.BROKEN}")["a2c-broken"]
    assert found["finished"] and found["rows"][-1]["dropped_episodes"] == 2  # of both environment ranks


@pytest.mark.parametrize(
    "changes, message",
    [
        (["workflow.name=central_inference", "workflow.actor_lag=2"], "no rank has old parameters"),
        (
            ["workflow.name=dyna", "workflow.max_updates=1"],
            "must be at least workflow.updates_per_iteration = 2",
        ),
        (["workflow.name=dyna", "workflow.actors=2"], "one rank acts in the real environment"),
    ],
)
def test_what_cannot_be_is_said(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        train(actor_learner_jobs.config_of("dqn", changes), tmp_path / "run", say=lambda _: None)
