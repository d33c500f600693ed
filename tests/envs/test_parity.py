"""A policy trained on the jittable CartPole gets the same score in Gymnasium's own, through the bridge."""

import numpy as np
import pytest

from jaxrl_hpc.runtime.evaluation import evaluate_run, load_run
from jaxrl_hpc.runtime.train import train
from tests import small

EPISODES = 200


def returns(folder, overrides=()):
    _, runner = load_run(folder, EPISODES, overrides)
    runner.compile(training=False)
    (lane,) = runner.evaluate_many(EPISODES, -2)
    return np.asarray(lane.returns)


@pytest.mark.full
def test_cartpole_here_and_in_gymnasium(tmp_path):
    """Half trained, so that falls are common and a difference would show: means within three deviations."""
    agent = {"n_step": 8, "huber_delta": 100.0, "learning_rate": 1e-3, "batch_size": 64}
    agent |= {"epsilon_fraction": 0.2, "target_every": 0, "target_rate": 0.02, "network": {"hidden": [32]}}
    replay = {"name": "uniform", "capacity": 16_384, "min_size": 500}
    run = {"total_env_steps": 12_000, "log_every": 3_000, "eval_every": 0, "final_eval_episodes": 4}
    config = small.config(agent=agent, replay=replay, run=run)
    assert train(config, tmp_path / "run", say=lambda _: None).finished
    outside = ["env.name=gymnasium", "env.id=CartPole-v1"]
    here, there = returns(tmp_path / "run"), returns(tmp_path / "run", outside)
    assert here.std() > 5 and here.mean() > 30  # it has learned something, and not all
    error = np.sqrt(here.var() / EPISODES + there.var() / EPISODES)
    assert abs(here.mean() - there.mean()) < 3 * error
    assert evaluate_run(tmp_path / "run", 8, overrides=outside)["env"] == "gymnasium/CartPole-v1"
