"""Normalisation: its statistics are those of the raw data, and any agent learns from what it scales."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc import rollout
from jaxrl_hpc.agents import dqn
from jaxrl_hpc.agents.normalise import NormaliseConfig, wrap
from jaxrl_hpc.networks.torso import NetworkConfig
from jaxrl_hpc.ops import running_stats
from jaxrl_hpc.types import Batch
from jaxrl_hpc.workflows import update
from tests.agents.onpolicy import parts_of, unroll
from tests.tiers import quick

BOTH = {"observation": True, "reward": True}
SMALL = {"name": "a2c", "network": {"hidden": [8]}, "normalise": BOTH}


def start(agent: dict = SMALL, env: str = "CartPole-v1") -> tuple:
    parts, hypers = parts_of(agent, env)
    return parts, jax.jit(parts.agent.init)(jax.random.key(3), hypers["agent"])


def test_statistics_are_those_of_all_raw_data_and_of_discounted_returns():
    parts, state = start()
    agent = parts.agent
    step = jax.jit(lambda p, c: rollout.unroll(parts.env, agent, p, c, 7))
    moments, add = jax.jit(agent.statistics), jax.jit(agent.update_statistics)
    copies = rollout.start(parts.env, agent, jax.random.key(0), jnp.arange(5))
    observations, rewards, lasts = [], [], []
    for _ in range(12):  # returns are carried over from one unroll to the next
        copies, data, _ = step(agent.actor(state), copies)
        state = add(state, moments(state, data))
        observations.append(data.obs), rewards.append(data.reward), lasts.append(data.last)
    everything = np.concatenate(observations).reshape(-1, 4).astype(np.float64)
    np.testing.assert_allclose(state.aux["observation"].mean, everything.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(running_stats.variance(state.aux["observation"]), everything.var(0), rtol=1e-3)

    reward, last = np.concatenate(rewards).astype(np.float64), np.concatenate(lasts)
    assert last.any()
    found, so_far = [], np.zeros(5)
    for r, ended in zip(reward, last, strict=True):
        so_far = 0.99 * so_far + r
        found.append(so_far.copy())
        so_far[ended] = 0
    np.testing.assert_allclose(running_stats.variance(state.aux["return"]), np.var(found), rtol=1e-3)
    assert state.aux["return"].number == reward.size


def test_moments_add_up_over_shards_of_copies():
    parts, state = start()
    data = unroll(parts, state, 9, 8)
    moments = jax.jit(parts.agent.statistics)
    state = parts.agent.update_statistics(state, moments(state, data))
    parts_of_it = [
        moments(state, jax.tree.map(lambda x, i=i: x[:, 2 * i : 2 * i + 2], data)) for i in range(4)
    ]
    added = jax.tree.map(lambda *x: sum(x), *parts_of_it)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), added, moments(state, data)
    )


@pytest.mark.parametrize("agent", quick(["a2c", "ppo"], ["ppo"]))
def test_gradient_equals_that_of_the_plain_agent_on_scaled_data(agent):
    settings = {"name": agent, "network": {"hidden": [8]}}
    if agent == "ppo":
        settings |= {"epochs": 1, "minibatches": 1}
    parts, state = start(settings | {"normalise": BOTH})
    plain, plain_state = start(settings)
    data = unroll(parts, state, 20, 4)
    state = parts.agent.update_statistics(state, parts.agent.statistics(state, data))
    mean, spread = np.asarray(data.obs).mean((0, 1)), np.asarray(data.obs).std((0, 1))
    scaled = data._replace(
        obs=np.clip((data.obs - mean) / spread, -10, 10),
        next_obs=np.clip((data.next_obs - mean) / spread, -10, 10),
        reward=data.reward / np.asarray(data.extras["return"]).std(),
        extras=data.extras["agent"],
    )

    def gradient(agent, state, data):
        batch = update.as_batch(data)
        if agent.minibatches is not None:
            batch = jax.tree.map(lambda x: x[0], agent.minibatches(state, batch, jax.random.key(0)))
        return agent.gradient(state, batch, jax.random.key(1))[0]

    found = jax.jit(lambda s, d: gradient(parts.agent, s, d))(state, data)
    expected = jax.jit(lambda s, d: gradient(plain.agent, s, d))(plain_state, scaled)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-4), found, expected)


def test_acting_and_evaluation_use_the_statistics():
    """With statistics of data that is shifted and stretched, actions are those of the unshifted."""
    settings = SMALL | {"normalise": {"observation": True}}
    parts, state = start(settings)
    obs = jax.random.normal(jax.random.key(0), (64, 4))
    stretched = 5.0 + 3.0 * obs
    statistics = running_stats.RunningStats(jnp.float32(64), jnp.full(4, 5.0), jnp.full(4, 64 * 9.0))
    fitted = state._replace(aux=state.aux | {"observation": statistics})
    keys = jax.random.split(jax.random.key(1), 64)
    act = jax.jit(parts.agent.act, static_argnums=4)
    plain, _, before = act(parts.agent.actor(state), (), obs, keys, False)
    found, _, after = act(parts.agent.actor(fitted), (), stretched, keys, False)
    np.testing.assert_allclose(after["log_prob"], before["log_prob"], rtol=1e-3, atol=1e-4)
    assert (plain == found).mean() > 0.98


def test_wraps_an_agent_that_learns_from_replay():
    parts, _ = start()
    spec = parts.env.spec
    config = dqn.Config(network=NetworkConfig(hidden=(8,)), batch_size=6, n_step=2)
    agent = wrap(NormaliseConfig(observation=True, reward=True), spec, dqn.make(config, spec, num_envs=6))
    hypers = {"agent": {name: jnp.float32(value) for name, value in _traced(config).items()}}
    state = agent.init(jax.random.key(0), hypers["agent"])
    copies = rollout.start(parts.env, agent, jax.random.key(0), jnp.arange(6))
    copies, data, _ = jax.jit(lambda p, c: rollout.unroll(parts.env, agent, p, c, 2))(
        agent.actor(state), copies
    )
    state = agent.update_statistics(state, agent.statistics(state, data))
    batch = Batch(data, jnp.ones(6), jnp.arange(6))
    grads, info = jax.jit(agent.gradient)(state, batch, jax.random.key(1))
    assert info.priority.shape == (6,)
    np.testing.assert_allclose(agent.priority(agent.actor(state), batch), info.priority, rtol=1e-4, atol=1e-5)
    state = jax.jit(agent.apply)(state, grads)
    assert state.step == 1 and float(state.aux["observation"].number) == 12


def _traced(config):
    from jaxrl_hpc.schema import traced_values

    return traced_values(config)
