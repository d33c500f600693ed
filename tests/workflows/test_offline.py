"""The workflow `offline`: the replay holds the recording, nothing acts until it may, and resume is exact."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow.parquet as pq
import pytest

import jaxrl_hpc as rl
from jaxrl_hpc import config as configs
from jaxrl_hpc import datasets, rollout
from jaxrl_hpc.cli.main import main
from jaxrl_hpc.datasets import parquet
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.metrics.parquet import read_metrics
from jaxrl_hpc.replay import storage
from jaxrl_hpc.runtime import host
from jaxrl_hpc.runtime.build import build, hypers_of
from jaxrl_hpc.runtime.record import draw_action, record_run
from jaxrl_hpc.runtime.train import train
from tests import small
from tests.datasets import made
from tests.tiers import quick

RUN = {"eval_every": 0, "eval_episodes": 2, "final_eval_episodes": 2, "tensorboard": False}


def config(**sections):
    base = {
        "agent": {"name": "td3", "network": {"hidden": [8]}, "batch_size": 8, "behaviour_cloning": True},
        "env": {"name": "Pendulum-v1"},
        "replay": {"name": "uniform", "capacity": 1000, "min_size": 16},
        "workflow": {"name": "offline", "dataset": str(made.random_file("Pendulum-v1", 500))},
        "run": {"total_env_steps": 40, "log_every": 10, **RUN},
    }
    found = {name: part | sections.get(name, {}) for name, part in base.items()}
    if found["agent"]["name"] != "td3":
        del found["agent"]["behaviour_cloning"]
    return configs.from_dict(found)


def filled(found):
    flow = build(found).workflow
    hypers = jax.tree.map(jnp.float32, hypers_of(found))
    return flow, jax.jit(lambda key: flow.warmup(flow.init(key, hypers)))(jax.random.key(0))


@pytest.mark.parametrize(("copies", "unroll"), quick([(1, 1), (3, 4)], [(3, 4)]))
def test_the_replay_holds_the_recording(copies, unroll, monkeypatch) -> None:
    monkeypatch.setattr("jaxrl_hpc.workflows.offline.BLOCK", 100)  # several blocks, the last one not whole
    found = config(workflow={"num_envs": copies, "unroll_length": unroll}, agent={"n_step": 2})
    flow, state = filled(found)
    data = flow.source.dataset.data
    per_copy = 500 // (copies * unroll) * unroll
    assert int(state.replay.memory.ring.written) == per_copy and int(state.env_steps) == 0
    index = jnp.arange(per_copy * copies, dtype=jnp.int32)  # slot * B + copy
    parts = build(found)
    sizes = storage.storage(_sizes(found, parts), "auto", 0)
    read = storage.read(sizes, state.replay.memory, index)
    rows = (np.arange(per_copy)[:, None] + np.arange(copies) * per_copy).reshape(-1)
    for name in ("obs", "action", "reward", "discount", "next_obs"):
        np.testing.assert_array_equal(getattr(read, name)[0], getattr(data, name)[rows])
    last = data.last[rows] | (np.repeat(np.arange(per_copy), copies) == per_copy - 1)
    np.testing.assert_array_equal(read.last[0], last)  # a window never goes on in another copy's part


def _sizes(found, parts):
    from jaxrl_hpc.replay.sizes import replay_sizes

    flow, needs = found.workflow, parts.agent.needs
    return replay_sizes(
        found.replay,
        num_envs=flow.num_envs,
        unroll_length=flow.unroll_length,
        window=needs.length,
        batch_size=needs.batch_size,
    )


def test_it_acts_only_when_it_may() -> None:
    flow, state = filled(config(workflow={"num_envs": 2, "online_after": 20}))
    step = jax.jit(flow.step)
    written, seen = [], []
    for _ in range(4):
        state, metrics = step(state, jnp.int32(5))  # of two steps each
        written.append(int(state.replay.memory.ring.written))
        seen.append((int(state.env_steps), int(metrics["acted_steps"]), int(metrics["updates"])))
    assert written == [250, 250, 255, 260]
    assert seen == [(10, 0, 5), (20, 0, 10), (30, 10, 15), (40, 20, 20)]


def test_running_statistics_are_those_of_the_recording() -> None:
    flow, state = filled(config(agent={"normalise": {"observation": True}}))
    data = flow.source.dataset.data
    np.testing.assert_allclose(state.learner.aux["observation"].mean, data.obs.mean(axis=0), atol=1e-4)


def test_seeds_resume_and_summary(tmp_path, monkeypatch) -> None:
    """Two seeds with an online part, interrupted and resumed, are those that ran through."""
    found = config(run={"seeds": 2, "total_env_steps": 60}, workflow={"online_after": 30})
    whole = train(found, tmp_path / "whole", say=lambda _: None).summary
    small.signal_at_chunk(monkeypatch, 3)
    assert not train(found, tmp_path / "cut", say=lambda _: None).finished
    again = train(found, tmp_path / "cut", resume=True, say=lambda _: None).summary
    assert whole["params_sha256"] == again["params_sha256"]
    assert whole["eval_return_per_seed"] == again["eval_return_per_seed"]
    assert (whole["dataset_transitions"], whole["updates"]) == (500, 60)
    rows = [row for row in read_metrics(tmp_path / "cut").to_pylist() if row["kind"] == "train"]
    assert max(row["acted_steps"] for row in rows) == 30


@pytest.mark.full
def test_stacked_seeds_read_the_same_recording() -> None:
    from jaxrl_hpc.runtime.train import lanes_of, make_runner

    found = config(run={"seeds": 3, "seeds_mode": "vmap"})
    runner = make_runner(found, build(found), lanes_of(found))
    runner.compile()
    runner.initialise()
    runner.step(2)
    rings = np.asarray(runner.states[0].replay.memory.ring.written)
    np.testing.assert_array_equal(rings, [500, 500, 500])
    assert runner.counters()["updates"] == 2


REFUSED = {
    "no dataset": ({"workflow": {"dataset": ""}}, "workflow.dataset: name the file"),
    "no replay": (
        {"agent": {"name": "ppo"}, "replay": None},
        "workflow offline: this agent learns from its own",
    ),
    "rates": (
        {"workflow": {"actor_priorities": True}},
        "actor_priorities: recorded transitions have no actor",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_is_refused_when_it_is_built(kind) -> None:
    changes, message = REFUSED[kind]
    data = {name: dict(part) for name, part in config().to_dict().items()}
    for name, part in changes.items():
        if part is None:
            del data[name]
        elif "name" in part:
            data[name] = part
        else:
            data[name] |= part
    with pytest.raises(UserError, match=message):
        build(configs.from_dict(data))


LATE = {
    "foreign": ({"env": {"name": "MountainCarContinuous-v0"}}, "recorded in Pendulum-v1"),
    "few": ({"replay": {"min_size": 600}}, "it has 500 transitions, but learning begins with 600"),
    "capacity": (
        {"replay": {"capacity": 300}},
        "replay.capacity is 300: .* 500 recorded transitions; set it to 500",
    ),
    "online": (
        {"replay": {"capacity": 505}, "workflow": {"online_after": 30}},
        "500 recorded transitions and 10 new ones; set it to 510",
    ),
    "returns": (
        {"agent": {"normalise": {"reward": True}}},
        "agent: it learns from data that its own actors store",
    ),
}


@pytest.mark.parametrize("kind", LATE)
def test_what_cannot_be_is_refused_before_anything_is_written(kind, tmp_path) -> None:
    changes, message = LATE[kind]
    with pytest.raises(UserError, match=message):
        train(config(**changes), tmp_path / "run", say=lambda _: None)
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_missing_file_ends_the_command_with_one_sentence(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "pendulum_td3_bc", "workflow.dataset=nothing.parquet"]) == 2
    error = capsys.readouterr().err
    assert "dataset nothing.parquet: no such file" in error and "Traceback" not in error


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("record") / "run"
    train(small.config(run={"total_env_steps": 400, **RUN}), folder, say=lambda _: None)
    return folder


def test_a_recording_is_what_the_policy_does(run, tmp_path, capsys) -> None:
    out = tmp_path / "a.parquet"
    assert main(["record", str(run), "--steps", "700", "--out", str(out), "--policy", "greedy"]) == 0
    assert "wrote" in capsys.readouterr().out
    found = datasets.open_dataset(out)
    data = found.data
    about = json.loads(pq.read_schema(out).metadata[parquet.KEY])
    assert found.rows == 700 and about["policy"] == "greedy" and found.spec.name == "CartPole-v1"
    inside = ~data.last[:-1]
    np.testing.assert_array_equal(data.next_obs[:-1][inside], data.obs[1:][inside])  # consecutive
    np.testing.assert_array_equal(found.first[1:], data.last[:-1])
    policy = rl.load(run).policy()
    np.testing.assert_array_equal([int(policy(obs)) for obs in data.obs[:20]], data.action[:20])


def test_a_share_of_episodes_is_random(run, tmp_path) -> None:
    found = record_run(run, tmp_path / "a.parquet", 3000, policy="greedy", random=1.0)
    data = datasets.open_dataset(found.path).data
    assert abs(data.action.mean() - 0.5) < 0.05  # an untrained greedy policy does nearly always the same
    half = datasets.open_dataset(
        record_run(run, tmp_path / "b.parquet", 3000, policy="greedy", random=0.5).path
    )
    same = datasets.open_dataset(
        record_run(run, tmp_path / "c.parquet", 3000, policy="greedy", random=0.5).path
    )
    np.testing.assert_array_equal(half.data.obs, same.data.obs)  # one seed, one recording
    policy = rl.load(run).policy()
    agrees = np.array([int(policy(obs)) for obs in half.data.obs[:400]]) == half.data.action[:400]
    by_episode = [part.mean() for part in np.split(agrees, np.flatnonzero(half.first[1:400]) + 1)]
    assert 0 < np.mean(np.array(by_episode) == 1.0) < 1  # whole episodes are one or the other


def test_a_recording_that_does_not_fit_is_refused(run, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(host, "available_memory", lambda: 2**30)
    with pytest.raises(
        UserError, match=r"--steps: 100,000,000 transitions need 15\.6 GiB of memory, but 1\.0"
    ):
        record_run(run, tmp_path / "a.parquet", 100_000_000)


def test_bad_arguments_of_record_are_one_sentence(run, tmp_path, capsys) -> None:
    (tmp_path / "d.parquet").mkdir()
    for arguments, message in (
        (["--out", "a.csv"], "should end in .parquet"),
        (["--out", str(tmp_path / "no" / "a.parquet")], "there is no folder"),
        (["--out", "a.parquet", "--random", "2"], "--random: should be from 0 to 1"),
        (["--out", "a.parquet", "--steps", "0"], "--steps: should be from 1"),
        (["--out", "a.parquet", "--run-seed", "7"], "has no seed 7"),
        (["--out", str(tmp_path / "d.parquet")], "d.parquet is not a file"),
    ):
        assert main(["record", str(run), *arguments]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize(
    "agent",
    [
        {"name": "iql", "advantage_scale": 10.0, "expectile": 0.5, "actor_learning_rate": 3e-3},
        {"name": "td3", "behaviour_cloning": True, "actor_learning_rate": 3e-3},
        {"name": "td3", "behaviour_cloning": True, "bc_alpha": 0.0},
    ],
    ids=["iql", "td3_bc", "behaviour cloning"],
)
def test_better_actions_than_the_recorded_ones_are_found(agent) -> None:
    """Random actions in an environment that pays minus the squared distance to a goal seen in the state."""
    found = config(
        agent={"network": {"hidden": [32]}, "batch_size": 64, "learning_rate": 3e-3, "gamma": 0.7, **agent},
        env={"name": "ProbeBothContinuous"},
        replay={"capacity": 4000},
        workflow={"dataset": str(made.random_file("ProbeBothContinuous", 3000))},
    )
    flow, state = filled(found)
    state, _ = jax.jit(flow.step)(state, jnp.int32(1500))
    parts = build(found)
    actor = parts.agent.actor(flow.learner(state))
    best = rollout.evaluate(parts.env, parts.agent, actor, jax.random.key(9), 64).returns.mean()
    recorded = datasets.behaviour(flow.source.dataset)["return"]
    if agent.get("bc_alpha") == 0.0:  # the mean of random actions, 0, is 0.5 from every goal
        assert abs(float(best) + 0.25) < 0.1
    else:
        assert best > -0.12
    assert float(recorded) < -1.4  # 4/3 is the variance of the actions


def test_random_actions_of_every_kind_are_in_their_space() -> None:
    keys = jax.random.split(jax.random.key(0), 500)
    env = made.make_env("Pendulum-v1")
    several = env.spec._replace(action_sizes=(2, 5), action_shape=(2,), action_low=None, action_high=None)
    drawn = jax.vmap(lambda key: draw_action(several, key))(keys)
    assert drawn.dtype == jnp.int32 and set(np.unique(drawn[:, 0])) == {0, 1}
    assert set(np.unique(drawn[:, 1])) == {0, 1, 2, 3, 4}
    drawn = jax.vmap(lambda key: draw_action(env.spec, key))(keys)
    assert drawn.shape == (500, 1) and -2 <= drawn.min() < -1.9 and 1.9 < drawn.max() <= 2
