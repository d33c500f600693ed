"""A BOOSTR recording as transitions: what the environment itself sees when it replays the recording."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc import config as configs
from jaxrl_hpc.config.registry import find
from jaxrl_hpc.datasets import check_fits
from jaxrl_hpc.envs.exabooster import ExaBoosterConfig, actions, channels, make, recording
from jaxrl_hpc.envs.exabooster.transitions import transitions
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runtime.train import train

TICKS, GAP = 900, 400  # of the recording
CONTINUOUS = {"name": "ExaBoosterContinuous-v0", "bank_size": 20}


def dataset(path, **settings):
    config = ExaBoosterConfig(**settings)
    env = find("env", config.name).make(config)
    return env, env.host.read_recording(str(path))


def test_transitions_are_what_the_environment_sees(path, log) -> None:
    """The environment replays the recording; recorded actions must lead to recorded observations, rewards."""
    _, found = dataset(path, **CONTINUOUS, delta_max=0.5)
    config = ExaBoosterConfig(
        **CONTINUOUS | {"bank_size": 5, "delta_max": 0.5}, model="residual", recording=str(path)
    )
    env, params = make(config)
    obs, state = env.reset_env(jax.random.key(1), params)
    row = int(state.machine.row)
    (start,) = np.flatnonzero((np.abs(found.data.obs - np.asarray(obs)) < 2e-3).all(axis=1))
    step = jax.jit(env.step_env)
    for i in range(start, start + 40):
        np.testing.assert_allclose(found.data.obs[i], obs, atol=3e-3)
        action = jnp.asarray(found.data.action[i])
        obs, state, reward, _, _ = step(jax.random.key(0), state, action, params)
        np.testing.assert_allclose(found.data.reward[i], reward, atol=1e-5)
        np.testing.assert_allclose(found.data.next_obs[i], obs, atol=3e-3)
    assert found.data.reward[start] == pytest.approx(-abs(log[0][row + 1, 1]), abs=1e-6)


def test_gaps_cut_episodes(path) -> None:
    env, found = dataset(path, **CONTINUOUS)
    check_fits(found, env.spec)
    assert found.first.sum() == 2 and found.data.last.sum() == 2 and (found.data.discount == 1).all()
    # windows of 15 rows, and one after: the reader's shift takes the last row
    assert found.rows == (GAP - 15) + (TICKS - 1 - GAP - 15)
    inside = ~found.data.last[:-1]
    np.testing.assert_array_equal(found.data.next_obs[:-1][inside], found.data.obs[1:][inside])


@pytest.mark.parametrize("reward", ["abs", "exp", "exp_minus_one"])
def test_other_settings(path, log, reward) -> None:
    env, found = dataset(path, bank_size=20, reward=reward, observation="compat")
    check_fits(found, env.spec)
    rows = log[0]
    expected = (rows[0] - channels.MINIMUM) / (channels.MAXIMUM - channels.MINIMUM)
    np.testing.assert_allclose(found.data.obs[0], expected, atol=1e-4)
    change = rows[1, 0] - rows[0, 0]
    nearest = np.abs(actions.QUANTILE_30 - change).argmin()
    assert found.data.action[0] == nearest
    error = abs(rows[1, 1])
    paid = {"abs": -error, "exp": np.exp(-5 * error), "exp_minus_one": np.exp(-5 * error) - 1}[reward]
    assert found.data.reward[0] == pytest.approx(paid, abs=1e-4)


def test_errors_beyond_the_limit_end_the_episode(path) -> None:
    whole = recording.read(path, TICKS, need_set_point=False)
    rows = whole.rows.copy()
    rows[100, 1] = 2.5
    config = ExaBoosterConfig(**CONTINUOUS)
    found = transitions("log", whole._replace(rows=rows), config, np.array([0.03]))
    (lost,) = np.flatnonzero(found.terminated)
    assert found.reward[lost] == -2.5 - 500 and found.episode[lost + 1] == found.episode[lost] + 1
    short = whole._replace(joined=np.zeros_like(whole.joined))
    with pytest.raises(UserError, match="no 16 neighbouring ticks without a gap"):
        transitions("log", short, config, np.array([0.03]))


@pytest.mark.full
def test_a_run_from_a_recording(path, tmp_path) -> None:
    config = configs.from_dict(
        {
            "agent": {"name": "iql", "network": {"hidden": [8]}, "batch_size": 8},
            "env": CONTINUOUS,
            "replay": {"name": "uniform", "capacity": 1000, "min_size": 16},
            "workflow": {"name": "offline", "dataset": str(path)},
            "run": {"total_env_steps": 20, "eval_every": 0, "final_eval_episodes": 2, "eval_episodes": 2},
        }
    )
    summary = train(config, tmp_path / "run", say=lambda _: None).summary
    assert summary["updates"] == 20 and "eval_improvement_score" in summary
