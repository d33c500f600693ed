"""The recommended split balances acting and learning, and no neighbour of it is better in the model."""

import json

import pytest

from jaxrl_hpc.cli.main import main
from jaxrl_hpc.metrics.parquet import read_metrics
from jaxrl_hpc.scaling import split
from jaxrl_hpc.scaling.costs import Costs, JobPlan
from jaxrl_hpc.scaling.model import LatencyBandwidth
from tests.mpi import launch


def costs(acting, update, **more):
    base = Costs(
        length=4,
        copies=2,
        compute=0.0,
        sleep=0.0,
        inference=LatencyBandwidth(acting / 4, 1e30),
        update=update,
    )
    return base._replace(**more)


@pytest.mark.parametrize(
    "acting, update, ranks, learners",
    [(3.0, 1.0, 8, 2), (1.0, 1.0, 6, 3), (15.0, 1.0, 64, 4), (9.0, 1.0, 5, 1)],
)
def test_the_balanced_split_is_found(acting, update, ranks, learners):
    best, choices = split.recommend(costs(acting, update), JobPlan("async", 1), ranks)
    assert best.learners == learners and best.actors == ranks - learners
    speeds = {c.learners: c.outcome.steps_per_second for c in choices}
    for neighbour in (learners - 1, learners + 1):
        if 1 <= neighbour <= ranks // 2:
            assert speeds[neighbour] < speeds[learners]
    assert f"| {learners} + {ranks - learners} |" in split.table(best, choices)


def test_balance_keeps_both_sides_busy():
    best, _ = split.recommend(costs(3.0, 1.0), JobPlan("async", 1), 16)
    assert (best.learners, best.actors) == (4, 12)
    assert best.outcome.actor_idle < 0.05 and best.outcome.learner_idle < 0.05


def test_a_costly_reduction_speaks_for_fewer_learners():
    cheap, _ = split.recommend(costs(3.0, 1.0), JobPlan("async", 1), 16)
    dear, _ = split.recommend(costs(3.0, 1.0, reduce=LatencyBandwidth(1.0, 1e30)), JobPlan("async", 1), 16)
    shared, _ = split.recommend(
        costs(3.0, 1.0, reduce=LatencyBandwidth(1.0, 1e30)), JobPlan("async", 1), 16, shared=True
    )
    assert dear.outcome.steps_per_second < cheap.outcome.steps_per_second
    assert shared.learners == 1


@pytest.mark.full
def test_command_measures_and_recommends(tmp_path, capsys):
    small = ["agent.network.hidden=[8]", "workflow.num_envs=2", "workflow.unroll_length=4"]
    status = main(["scaling", "workflows/cartpole_impala", *small, "--split", "4", "--out", str(tmp_path)])
    assert status == 0
    found = json.loads((tmp_path / "split.json").read_text())
    best = found["recommended"]["learners"]
    speeds = {row["learners"]: row["steps_per_second"] for row in found["splits"]}
    assert speeds[best] == max(speeds.values()) and found["costs"]["update"] > 0
    assert f"workflow.learners={best}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["cartpole_dqn", "--split", "4"], "has no actors and learners"),
        (["workflows/cartpole_impala", "--split", "1"], "at least 2 are needed"),
    ],
)
def test_what_cannot_be_divided(capsys, arguments, message):
    assert main(["scaling", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.mpi
@launch.needs_mpi
def test_the_recommended_split_is_the_fastest_in_fact(tmp_path):
    """Steps that sleep 4 ms, so that two cores are enough for four ranks: then nearly all should act."""
    words = ["run.step_seconds=0.004", "workflow.num_envs=4", "workflow.unroll_length=16"]
    scaling = ["scaling", "workflows/cartpole_impala", *words, "--split", "4", "--out", str(tmp_path)]
    assert main(scaling) == 0
    best = json.loads((tmp_path / "split.json").read_text())["recommended"]["learners"]
    words += [
        "run.total_env_steps=16_000",
        "run.log_every=640",
        "run.eval_every=0",
        "run.final_eval_episodes=4",
    ]
    speeds = {}
    for learners in (1, 2):
        folder = tmp_path / str(learners)
        job = ["train", "workflows/cartpole_impala", *words, f"workflow.learners={learners}"]
        status, output = launch.run(4, "-m", "jaxrl_hpc.cli.main", *job, "--run-dir", str(folder), NPROC="1")
        assert status == 0, output
        rows = [row for row in read_metrics(folder).to_pylist() if row["kind"] == "train"]
        late = rows[len(rows) // 4], rows[-1]  # the beginning compiles
        steps, seconds = (late[1][name] - late[0][name] for name in ("env_steps", "wall_seconds"))
        speeds[learners] = steps / seconds
    assert best == max(speeds, key=lambda learners: speeds[learners]), speeds
