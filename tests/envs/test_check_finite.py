"""Environments of one's own inside the program: NaN is named by copy and step, or its episode is dropped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnax.environments import environment, spaces

from jaxrl_hpc.envs import user_env
from jaxrl_hpc.envs.delayed import wrap
from jaxrl_hpc.envs.external.host import given_up_counts, hosts_of, simulator_failures_told
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runtime import train
from tests import small

COPIES = 3
KEYS = jax.random.split(jax.random.key(0), COPIES)
HERE = "tests.envs.test_check_finite:Leaky"


@struct.dataclass
class State:
    time: jax.Array
    key: jax.Array  # states may hold keys


class Leaky(environment.Environment):
    """Observes the time; action 1 makes a number bad."""

    def __init__(self, what="reward", value="nan", never_well=False):
        super().__init__()
        self.what, self.value, self.never_well = what, float(value), never_well

    def reset_env(self, key, params):
        time = jnp.float32(jnp.nan if self.never_well else 0.0)
        return jnp.stack([time, 0.0]), State(jnp.int32(0), key)

    def step_env(self, key, state, action, params):
        state = State(state.time + 1, state.key)
        bad = jnp.where(action == 1, self.value, 0.0)
        obs, reward = jnp.stack([state.time.astype(jnp.float32), 0.0]), jnp.float32(1)
        obs, reward = (obs + bad, reward) if self.what == "obs" else (obs, reward + bad)
        return obs, state, reward, jnp.zeros((), bool), {}

    @property
    def default_params(self):
        return environment.EnvParams(max_steps_in_episode=6)

    def action_space(self, params=None):
        return spaces.Discrete(2)

    def observation_space(self, params=None):
        return spaces.Box(-jnp.inf, jnp.inf, (2,))


def make(**settings):
    on_error = settings.pop("on_error", "stop")
    return user_env.make(user_env.Config(name=HERE, kwargs=settings, on_error=on_error))


ACTIONS = np.zeros((5, COPIES), np.int32)
ACTIONS[2, 1] = 1


def play(env, actions, keys=KEYS):
    state, _ = env.reset(keys)
    return jax.lax.scan(lambda s, a: env.step(keys, s, a), state, actions)[1]


@pytest.mark.parametrize(
    ("what", "value", "text"),
    [("reward", "nan", "a reward"), ("obs", "nan", "an observation"), ("obs", "inf", "an observation")],
)
def test_it_stops_with_one_sentence(what, value, text):
    env = make(what=what, value=value)
    jax.block_until_ready(jax.jit(lambda a: play(env, a))(0 * ACTIONS))
    sentence = rf"^env '{HERE}': copy 1 returned {text} that is not finite \(step 3, rank 0\); env.on_error="
    with pytest.raises(UserError, match=sentence), simulator_failures_told(env):
        jax.block_until_ready(jax.jit(lambda a: play(env, a))(ACTIONS))


def test_seeds_in_one_program_do_not_call_the_host_for_nothing(monkeypatch):
    env = make()
    calls = []
    monkeypatch.setattr(
        env.host.simulators, "_trouble", lambda troubles, number: calls.append((troubles, number))
    )
    keys = jax.random.split(jax.random.key(1), (2, COPIES))
    both = jax.jit(jax.vmap(lambda a, k: play(env, a, k)))
    jax.block_until_ready(both(np.stack([ACTIONS, ACTIONS]), keys))
    assert calls == [({1: "returned a reward that is not finite"}, 2)]


@pytest.mark.parametrize("what", ["reward", "obs"])
def test_the_episode_is_dropped(what, caplog):
    env = make(what=what, on_error="reset")
    steps = jax.jit(lambda a: play(env, a))(ACTIONS)
    bad = ACTIONS == 1
    np.testing.assert_array_equal(steps.info["dropped"], bad)
    np.testing.assert_array_equal(steps.truncated, bad)
    np.testing.assert_array_equal(steps.reward, 1.0 - bad)
    np.testing.assert_array_equal(steps.final_obs[:, 1, 0], [1, 2, 2, 1, 2])  # the last that was seen
    np.testing.assert_array_equal(steps.obs[:, 1, 0], [1, 2, 0, 1, 2])
    np.testing.assert_array_equal(steps.obs[:, 0, 0], [1, 2, 3, 4, 5])  # another copy is not touched
    assert given_up_counts(env) == {"dropped_episodes": 1, "restarted_episodes": 0}
    assert "copy 1 returned" in caplog.text and "dropped (1 episodes so far)" in caplog.text
    slow = wrap(env, 0.0)
    assert hosts_of(slow) == [env.host.simulators]  # not counted twice


def test_looking_can_be_left_out():
    env = user_env.make(user_env.Config(name=HERE, check_finite=False))
    steps = jax.jit(lambda a: play(env, a))(ACTIONS)
    np.testing.assert_array_equal(np.isnan(steps.reward), ACTIONS == 1)
    assert not hosts_of(env)
    with pytest.raises(UserError, match=r"^env.on_error=reset needs env.check_finite=true"):
        user_env.make(user_env.Config(name=HERE, check_finite=False, on_error="reset"))
    with pytest.raises(UserError, match=r"^env.check_finite: .* is a Gymnasium environment"):
        user_env.make(user_env.Config(name="gymnasium.envs.classic_control:CartPoleEnv", check_finite=False))


def test_a_start_that_is_not_finite_ends_the_run():
    env = make(never_well=True, on_error="reset")
    text = r"after a reset it returned an observation that is not finite \(step 1, rank 0\)"
    with pytest.raises(UserError, match=text), simulator_failures_told(env):
        jax.block_until_ready(jax.jit(lambda a: play(env, a))(ACTIONS))


@pytest.mark.slow
def test_runs(tmp_path):
    """Nearly every episode leaks, and is dropped; by default the run ends at once."""
    settings = {"name": HERE, "on_error": "reset"}
    run = {"seeds": 2, "eval_every": 0, "log_every": 400, "total_env_steps": 800, "final_eval_episodes": 2}
    outcome = train.train(small.config(env=settings, run=run), tmp_path / "run", say=lambda _: None)
    assert outcome.finished and outcome.summary["dropped_episodes"] > 10
    with pytest.raises(UserError, match=r"returned a reward that is not finite .step \d+, rank 0."):
        train.train(small.config(env={"name": HERE}, run=run), tmp_path / "other", say=lambda _: None)
