"""IQL against NumPy: its three losses, the weights' cap, targets, and draws."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.agents import iql
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.networks.torso import NetworkConfig
from jaxrl_hpc.schema import traced_values
from jaxrl_hpc.types import EnvSpec
from tests.agents.numpy_check import as_float64, assert_gradient, dense, mlp, n_step, windows

LOW, HIGH = np.array([-2.0, 0.5], np.float32), np.array([1.0, 4.5], np.float32)
SPEC = EnvSpec("made up", (3,), np.dtype(np.float32), None, (2,), LOW, HIGH, 10)
SMALL = NetworkConfig(hidden=(8, 6))


def start(config: iql.Config):
    """An agent whose targets differ from its networks."""
    agent = iql.make(config, SPEC, num_envs=4)
    hypers = {k: jnp.float32(v) for k, v in traced_values(config).items()}
    state, other = (jax.jit(agent.init)(jax.random.key(seed), hypers) for seed in (0, 1))
    louder = jax.tree.map(lambda x: 3.0 * x, state.params["policy"]["mean"])
    policy = state.params["policy"] | {"mean": louder}
    return agent, state._replace(params=state.params | {"policy": policy}, target=other.params["critic"])


def judged(params: dict, x: np.ndarray) -> np.ndarray:
    own = params["params"]
    return np.stack(
        [
            dense(own[f"Critic_{i}"]["Dense_0"], mlp(own[f"Critic_{i}"]["MLP_0"], x))[:, 0]
            for i in range(len(own))
        ]
    )


@pytest.mark.parametrize(("steps", "cap"), [(1, 100.0), (3, 1.01)])
def test_gradients_and_priority(steps: int, cap: float) -> None:
    config = iql.Config(
        network=SMALL, n_step=steps, gamma=0.9, expectile=0.8, advantage_scale=2.0, max_weight=cap
    )
    agent, state = start(config)
    batch = windows(steps, 16, 3, (2,))
    grads, info = jax.jit(agent.gradient)(state, batch, jax.random.key(5))

    data, weight = as_float64(batch.data), as_float64(batch.weight)
    params, target = as_float64(state.params), as_float64(state.target)
    rewards, discounts, finals = n_step(batch, 0.9)
    obs, next_obs = data.obs[0], data.next_obs[finals, np.arange(16)]
    unit = (data.action[0] - (LOW + HIGH) / 2) / ((HIGH - LOW) / 2)
    both = np.concatenate([obs, unit], axis=1)
    goal = rewards + discounts * judged(params["value"], next_obs)[0]
    taken = judged(target, both).min(axis=0)
    weights = np.minimum(np.exp(2.0 * (taken - judged(params["value"], obs)[0])), cap)
    assert (weights == cap).any() == (cap < 2)

    def critic_loss(critic: dict) -> float:
        return float(np.mean(weight * 0.5 * ((goal - judged(critic, both)) ** 2).sum(axis=0)))

    def value_loss(value: dict) -> float:
        u = taken - judged(value, obs)[0]
        return float(np.mean(weight * np.abs(0.8 - (u < 0)) * u**2))

    def policy_loss(policy: dict) -> float:
        own = policy["mean"]["params"]
        mean = np.tanh(dense(own["Dense_0"], mlp(own["torso"], obs)))
        spread = np.exp(policy["log_std"])
        density = np.exp(-0.5 * ((unit - mean) / spread) ** 2) / (spread * np.sqrt(2 * np.pi))
        return float(-np.mean(weights * np.log(density).sum(axis=1)))

    assert_gradient(critic_loss, state.params["critic"], grads["critic"])
    assert_gradient(value_loss, state.params["value"], grads["value"])
    assert_gradient(policy_loss, state.params["policy"], grads["policy"])
    error = np.abs(goal - judged(params["critic"], both)).mean(axis=0)
    np.testing.assert_allclose(info.priority, error, rtol=1e-4, atol=1e-5)
    new = jax.jit(agent.apply)(state, grads)
    jax.tree.map(
        lambda t, o, p: np.testing.assert_allclose(t, 0.995 * o + 0.005 * p, rtol=1e-4, atol=1e-6),
        new.target,
        state.target,
        new.params["critic"],
    )


def test_actions_are_draws_within_bounds() -> None:
    agent, state = start(iql.Config(network=SMALL, log_std=0.5))
    obs, keys = jnp.zeros((4000, 3)), jax.random.split(jax.random.key(1), 4000)
    drawn, _, _ = jax.jit(agent.act, static_argnums=4)(agent.actor(state), (), obs, keys, False)
    best, _, _ = jax.jit(agent.act, static_argnums=4)(agent.actor(state), (), obs, keys, True)
    assert (drawn >= LOW).all() and (drawn <= HIGH).all() and (best == best[0]).all()
    inside = (np.asarray(drawn) > LOW) & (np.asarray(drawn) < HIGH)
    expected = (best[0] - LOW) / (HIGH - LOW) * 2 - 1  # in units of half the range
    within = [  # P(-1 < N(mean, e^0.5) < 1)
        np.mean(np.abs(m + np.exp(0.5) * np.random.default_rng(0).standard_normal(100_000)) < 1)
        for m in expected
    ]
    np.testing.assert_allclose(inside.mean(axis=0), within, atol=0.03)


def test_discrete_actions_are_refused() -> None:
    with pytest.raises(UserError, match="agent 'iql' needs continuous actions"):
        iql.make(iql.Config(), SPEC._replace(num_actions=3, action_shape=()), num_envs=1)
