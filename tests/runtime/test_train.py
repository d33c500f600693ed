"""The run loop: results, exact resume, seeds, signals, refusals."""

import json
import signal

import numpy as np
import pytest

from jaxrl_hpc import config as configs
from jaxrl_hpc.config import registry
from jaxrl_hpc.config.compare import check_same_config, differences
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.metrics.parquet import read_metrics, without_clock
from jaxrl_hpc.metrics.progress import Progress
from jaxrl_hpc.runs.directory import SUMMARY_KEYS, RunDirectory
from jaxrl_hpc.runtime import host, train, trainer
from jaxrl_hpc.runtime.evaluation import evaluate_run
from jaxrl_hpc.runtime.seeds import choose_mode
from tests import small
from tests.tiers import quick


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A small run of two seeds from start to end."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    outcome = train.train(small.config(run={"seeds": 2}), folder, say=lambda _: None)
    assert outcome.finished
    return folder, outcome.summary


def test_summary_has_the_stable_keys(finished):
    folder, summary = finished
    assert set(SUMMARY_KEYS) <= set(summary)
    assert json.loads((folder / "summary.json").read_text())["params_sha256"] == summary["params_sha256"]
    assert summary["seeds"] == 2 and summary["env_steps"] == 4000
    assert summary["updates"] == 1000 - 17  # 17 slots of 4 copies hold 64 complete windows of two steps
    low, high = summary["eval_return_interval"]
    assert low <= summary["eval_return_score"] <= high


def test_the_summary_is_told_before_pictures_are_drawn(tmp_path, monkeypatch):
    """They take a second, and a disk that is full then leaves the result as it is."""
    happened = []

    def draw_run(runner, agent, run, summary):
        happened.append("drawn")
        raise UserError("no space left")

    def on_summary(summary):
        assert (tmp_path / "run" / "summary.json").exists()
        happened.append(summary["env_steps"])

    monkeypatch.setattr("jaxrl_hpc.runtime.trainer.draw_run", draw_run)
    config = small.config(run={"total_env_steps": 800})
    with pytest.raises(UserError, match="no space left"):
        train.train(config, tmp_path / "run", say=lambda _: None, on_summary=on_summary)
    assert happened == [800, "drawn"]
    assert train.train(
        config, tmp_path / "run", resume=True, say=lambda _: None, on_summary=on_summary
    ).finished
    assert happened == [800, "drawn", 800]


def test_the_mode_of_the_seeds_is_a_rule_and_is_recorded(finished):
    assert [choose_mode("auto", lanes, "cpu") for lanes in (1, 64)] == ["solo", "solo"]
    assert [choose_mode("auto", lanes, "cuda") for lanes in (1, 64)] == ["solo", "vmap"]
    assert choose_mode("vmap", 1, "cpu") == "vmap"
    folder, _ = finished
    saved = RunDirectory(folder).read_config()
    assert saved["run"]["seeds_mode"] == "solo"
    train.check_seeds_mode(small.config(), saved)
    with pytest.raises(UserError, match=r"run\.seeds_mode: the run was started with 'solo'"):
        train.check_seeds_mode(small.config(run={"seeds_mode": "vmap"}), saved)


def test_metrics_have_each_row_once(finished):
    folder, _ = finished
    table = read_metrics(folder).to_pandas()
    training = table[table.kind == "train"]
    assert not table.duplicated(["kind", "seed", "env_steps"]).any()
    assert sorted(set(training.seed)) == [0, 1]
    assert len(training) == 2 * 10
    assert training.env_steps.max() == 4000
    assert len(table[table.kind == "eval"]) == 2 * 3
    assert np.isfinite(training.loss).all()


def test_a_finished_run_is_not_touched(finished):
    folder, summary = finished
    with pytest.raises(UserError, match="exists already: continue it with --resume"):
        train.train(small.config(run={"seeds": 2}), folder)
    said = []
    again = train.train(small.config(run={"seeds": 2}), folder, resume=True, say=said.append)
    assert again.finished and again.summary["params_sha256"] == summary["params_sha256"]
    assert "already finished" in said[0]


def test_resume_refuses_another_config(finished):
    folder, _ = finished
    with pytest.raises(UserError, match=r"agent\.gamma was 0\.99 and is 0\.5"):
        train.train(small.config(run={"seeds": 2}, agent={"gamma": 0.5}), folder, resume=True)


def test_harmless_changes_are_allowed():
    config = small.config(run={"checkpoint_seconds": 5.0, "keep_checkpoints": 3})
    check_same_config(config, small.config().to_dict())
    assert differences({"a": {"b": 1}}, {"a": {"b": 2, "c": 3}}) == [
        "a.b was 1 and is 2",
        "a.c was None and is 3",
    ]


def test_a_field_that_came_later_has_its_default_in_runs_before():
    saved = small.config().to_dict()
    del saved["agent"]["learning_rate_warmup"]
    check_same_config(small.config(), saved)
    with pytest.raises(UserError, match=r"agent\.learning_rate_warmup was 0\.0 and is 0\.1"):
        check_same_config(small.config(agent={"learning_rate_warmup": 0.1}), saved)


def test_evaluate_a_run(finished):
    folder, _ = finished
    first, again, other = evaluate_run(folder, 8), evaluate_run(folder, 8), evaluate_run(folder, 8, seed=2)
    assert first == again
    assert first["eval_return_per_seed"] != other["eval_return_per_seed"]
    assert set(first["eval_return_per_seed"]) == {"0", "1"}


def test_a_seed_is_the_same_alone_or_among_many(finished, tmp_path):
    folder, _ = finished
    train.train(small.config(run={"seed": 1}), tmp_path / "alone", say=lambda _: None)
    alone = without_clock(read_metrics(tmp_path / "alone"))
    many = without_clock(read_metrics(folder))
    many = many.filter(np.asarray(many["seed"]) == 1)
    assert many.to_pylist() == alone.to_pylist() or str(many.to_pylist()) == str(alone.to_pylist())


@pytest.mark.parametrize("number", quick([signal.SIGTERM, signal.SIGUSR1, signal.SIGINT], [signal.SIGTERM]))
def test_a_signal_saves_and_the_resumed_run_ends_with_the_same_bits(finished, tmp_path, monkeypatch, number):
    folder, summary = finished
    config = small.config(run={"seeds": 2})
    small.signal_at_chunk(monkeypatch, 4, number)
    said = []
    outcome = train.train(config, tmp_path / "run", say=said.append)
    assert not outcome.finished and outcome.summary is None
    assert any(number.name in line and "--resume" in line for line in said)
    monkeypatch.undo()
    outcome = train.train(config, tmp_path / "run", resume=True, say=said.append)
    assert outcome.finished and outcome.summary["params_sha256"] == summary["params_sha256"]
    resumed, whole = (without_clock(read_metrics(f)).to_pylist() for f in (tmp_path / "run", folder))
    assert str(resumed) == str(whole)


def test_metrics_can_be_read_before_the_first_checkpoint(finished, tmp_path, monkeypatch):
    folder, summary = finished
    config, run = small.config(run={"seeds": 2, "tensorboard": False}), tmp_path / "run"
    seen = []

    class Broken(Exception):
        pass

    class Watched(Progress):
        def update(self, env_steps, values=None):
            seen.append(read_metrics(run).num_rows)
            if len(seen) == 3:
                raise Broken
            super().update(env_steps, values)

    monkeypatch.setattr(trainer, "PUBLISH_SECONDS", 0.0)
    monkeypatch.setattr(trainer, "PUBLISH_SHARE", 0.0)
    with pytest.raises(Broken):
        train.train(config, run, say=lambda _: None, progress=Watched)
    assert seen[0] > 0 and sorted(set(seen)) == seen
    monkeypatch.undo()
    outcome = train.train(config, run, resume=True, say=lambda _: None)
    assert outcome.summary["params_sha256"] == summary["params_sha256"]
    resumed, whole = (without_clock(read_metrics(f)).to_pylist() for f in (run, folder))
    assert str(resumed) == str(whole)


def test_a_run_that_cannot_fit_says_how_much_it_needs(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "available_memory", lambda: 2**28)
    with pytest.raises(UserError, match=r"the run needs \d+\.\d GiB .* but 0\.2 GiB are free"):
        train.train(small.config(replay={"capacity": 2**20}), tmp_path / "big")
    assert not (tmp_path / "big" / "config.yaml").exists()


def test_memory_is_known_before_anything_is_made():
    config = small.config(replay={"capacity": 2**20})
    runner = train.make_runner(config, train.build(config), train.lanes_of(config))
    from jaxrl_hpc.checkpoint.checkpointer import state_bytes

    before = state_bytes(runner.state_shape())
    rows = 2**20 * (4 * 4 * 2 + 3 * 4)  # two observations, action, reward, discount, at least
    assert rows <= before < 3 * rows


# random play: about 20 on CartPole, 0 and -0.7 on the probes, whose best are 1 and 0
CARTPOLE = {"ppo": 200, "a2c": 200, "dqn": 100, "pqn": 120}
PROBES = {
    **dict.fromkeys(("recurrent_dqn", "dyna_q"), ("ProbeBoth", 5_000, 0.99)),
    **dict.fromkeys(("td3", "ddpg", "sac", "iql", "mbpo", "mbpo_td3"), ("ProbeBothContinuous", 3_000, -0.03)),
}
BY_DEFAULT = {agent: ("CartPole-v1", 60_000, score) for agent, score in CARTPOLE.items()} | PROBES


SIBLINGS = ("iql", "mbpo_td3")  # whose parts the others have


@pytest.mark.parametrize(
    "agent",
    [
        *quick([agent for agent in BY_DEFAULT if agent not in SIBLINGS], ["ppo"]),
        *(pytest.param(agent, marks=pytest.mark.slow) for agent in SIBLINGS),
    ],
)
def test_an_agent_and_an_environment_are_enough_to_learn(tmp_path, agent):
    env, steps, at_least = BY_DEFAULT[agent]
    data = {"agent": {"name": agent}, "env": {"name": env}, "run": {"total_env_steps": steps}}
    outcome = train.train(configs.from_dict(data), tmp_path / "r", say=lambda _: None)
    assert outcome.summary["eval_return_score"] > at_least


def test_every_agent_is_tried_by_default():
    assert set(BY_DEFAULT) == set(registry.AGENTS)


def test_agents_and_replays_must_fit():
    with pytest.raises(UserError, match="learns from its own trajectories"):
        train.build(small.config(agent={"name": "a2c"}))
    with pytest.raises(UserError, match="leaves nothing to learn from"):
        train.build(small.config(run={"total_env_steps": 60}))


def test_partial_last_chunk(tmp_path):
    outcome = train.train(
        small.config(run={"total_env_steps": 1000, "log_every": 300}), tmp_path / "r", say=lambda _: None
    )
    assert outcome.summary["env_steps"] == 1000
