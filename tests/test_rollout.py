"""Transitions: time limits against failures, observations before the reset, streams by logical id."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc import rollout
from jaxrl_hpc.runtime.build import build, hypers_of
from jaxrl_hpc.types import Agent, Env, EnvSpec, EnvStep, Windows
from tests import small


def parts_for(env, **workflow):
    return build(small.config(env=env, workflow=workflow))


def roll(parts, ids, length, seed=0):
    learner = parts.agent.init(jax.random.key(1), {k: jnp.float32(v) for k, v in HYPERS.items()})
    state = rollout.start(parts.env, parts.agent, jax.random.key(seed), jnp.asarray(ids, jnp.int32))
    unroll = jax.jit(lambda s: rollout.unroll(parts.env, parts.agent, parts.agent.actor(learner), s, length))
    return unroll(state)


@pytest.fixture(autouse=True, scope="module")
def _hypers():
    global HYPERS
    from jaxrl_hpc.schema import traced_values

    HYPERS = traced_values(small.config().agent)


def test_a_time_limit_is_not_a_failure():
    parts = parts_for({"name": "CartPole-v1", "params": {"max_steps_in_episode": 5}})
    _, data, ended = roll(parts, range(64), 40)
    last, discount = np.asarray(data.last), np.asarray(data.discount)
    # five steps of random play from near upright never fail: every end is the limit
    assert last.sum() == 64 * 8 and (discount == 1).all()
    assert float(ended.number) == 64 * 8 and float(ended.length) == 64 * 40


def test_a_failure_at_the_limit_counts_as_a_failure():
    parts = parts_for({"name": "CartPole-v1", "params": {"max_steps_in_episode": 10}})
    _, data, _ = roll(parts, range(512), 10)
    obs = np.asarray(data.next_obs)
    failed = (np.abs(obs[..., 0]) > 2.4) | (np.abs(obs[..., 2]) > 12 * 2 * np.pi / 360)
    assert failed[-1].any(), "no copy failed exactly at the limit: the test shows nothing"
    assert (np.asarray(data.discount) == np.where(failed, 0.0, 1.0)).all()
    assert np.asarray(data.last)[-1][failed[-1]].all()


def test_next_observation_is_the_one_before_the_reset():
    parts = parts_for({"name": "CartPole-v1", "params": {"max_steps_in_episode": 7}})
    _, data, _ = roll(parts, range(8), 30)
    obs, next_obs, last = map(np.asarray, (data.obs, data.next_obs, data.last))
    inside = ~last[:-1]
    np.testing.assert_array_equal(next_obs[:-1][inside], obs[1:][inside])
    # after a reset everything is within 0.05 of zero; before it, CartPole has moved away
    assert (np.abs(obs[1:][last[:-1]]) <= 0.05).all()
    assert (np.abs(next_obs[last]).max(axis=-1) > 0.05).all()


def test_transition_follows_cartpole_physics():
    """The stored (obs, action, next_obs) obey the equations, computed here by hand in NumPy."""
    parts = parts_for({"name": "CartPole-v1"})
    _, data, _ = roll(parts, range(16), 50)
    x, v, theta, omega = np.moveaxis(np.asarray(data.obs, np.float64), -1, 0)
    force = np.where(np.asarray(data.action) == 1, 10.0, -10.0)
    temp = (force + 0.05 * omega**2 * np.sin(theta)) / 1.1
    alpha = (9.8 * np.sin(theta) - np.cos(theta) * temp) / (0.5 * (4 / 3 - 0.1 * np.cos(theta) ** 2 / 1.1))
    acceleration = temp - 0.05 * alpha * np.cos(theta) / 1.1
    expected = np.stack(
        [x + 0.02 * v, v + 0.02 * acceleration, theta + 0.02 * omega, omega + 0.02 * alpha], axis=-1
    )
    np.testing.assert_allclose(np.asarray(data.next_obs), expected, atol=1e-5)


def test_streams_do_not_depend_on_the_layout():
    parts = parts_for({"name": "CartPole-v1"})
    _, whole, _ = roll(parts, range(8), 40)
    halves = [roll(parts, ids, 40)[1] for ids in (range(4), range(4, 8))]
    joined = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *halves)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(joined), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_one_step_unrolls_equal_a_long_one():
    parts = parts_for({"name": "CartPole-v1"})
    state_long, long, _ = roll(parts, range(4), 6)
    learner = parts.agent.init(jax.random.key(1), {k: jnp.float32(v) for k, v in HYPERS.items()})
    state = rollout.start(parts.env, parts.agent, jax.random.key(0), jnp.arange(4))
    for t in range(6):
        state, one, _ = rollout.unroll(parts.env, parts.agent, parts.agent.actor(learner), state, 1)
        np.testing.assert_allclose(np.asarray(one.obs[0]), np.asarray(long.obs[t]), atol=1e-6)
    np.testing.assert_array_equal(jax.random.key_data(state.key), jax.random.key_data(state_long.key))


def test_evaluation_counts_whole_episodes():
    parts = parts_for({"name": "CartPole-v1", "params": {"max_steps_in_episode": 30}})
    learner = parts.agent.init(jax.random.key(1), {k: jnp.float32(v) for k, v in HYPERS.items()})
    result = rollout.evaluate(parts.env, parts.agent, parts.agent.actor(learner), jax.random.key(3), 32)
    assert np.asarray(result.finished).all()
    np.testing.assert_array_equal(result.returns, result.length)  # reward 1 a step
    assert (np.asarray(result.length) <= 30).all() and np.asarray(result.length).std() > 0


def test_what_an_agent_carries_begins_anew_with_every_episode():
    """Ornstein-Uhlenbeck noise of TD3: random steps within an episode, zero at its start."""
    config = small.config(
        agent={"name": "td3", "network": {"hidden": [8]}, "noise": "ou", "random_fraction": 0.0},
        env={"name": "Pendulum-v1", "params": {"max_steps_in_episode": 5}},
        replay={"name": "uniform", "capacity": 256, "min_size": 32},
    )
    parts = build(config)
    learner = parts.agent.init(jax.random.key(1), jax.tree.map(jnp.float32, hypers_of(config)["agent"]))
    state = rollout.start(parts.env, parts.agent, jax.random.key(0), jnp.arange(4))
    step = jax.jit(lambda s: rollout.unroll(parts.env, parts.agent, parts.agent.actor(learner), s, 1)[0])
    for number in range(1, 12):
        state = step(state)
        carried = np.asarray(state.carry["noise"])
        assert (carried == 0).all() if number % 5 == 0 else (carried != 0).all()


def test_an_episode_that_takes_the_place_of_a_dropped_one_starts_from_zero():
    """The first episode is dropped at its second step; sums of info belong to the episode that counts."""
    spec = EnvSpec("made up", (1,), np.dtype(np.float32), 2, (), None, None, 10, ("cost", "dropped"))

    def step(keys, time, action):
        time, no = time + 1, jnp.zeros(1, bool)
        obs, dropped = jnp.zeros((1, 1)), (time == 2).astype(jnp.float32)
        ends = time == 5
        info = {"cost": jnp.ones(1), "dropped": dropped}
        return time, EnvStep(obs, obs, jnp.ones(1), ends, ~ends & (dropped > 0) | no, info)

    env = Env(spec, lambda keys: (jnp.zeros(1, jnp.int32), jnp.zeros((1, 1))), step)
    agent = small_agent()
    found = jax.jit(lambda key: rollout.evaluate(env, agent, (), key, 1))(jax.random.key(0))
    assert found.returns.tolist() == [3] and found.length.tolist() == [3]
    assert found.info["cost"].tolist() == [3] and found.info["dropped"].tolist() == [1]


def small_agent() -> Agent:
    """Acts, and no more."""

    def act(params, carry, obs, key, greedy):
        return jnp.zeros(obs.shape[0], jnp.int32), carry, ()

    nothing: Any = None
    return Agent(Windows(1, 1), nothing, nothing, lambda ids: (), act, nothing, nothing)
