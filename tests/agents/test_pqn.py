"""PQN against NumPy and on environments whose values are known."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.agents import pqn
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.networks.torso import NetworkConfig
from jaxrl_hpc.schema import traced_values
from jaxrl_hpc.types import EnvSpec
from tests.agents.numpy_check import as_float64, assert_gradient, dense, windows
from tests.agents.onpolicy import parts_of, train
from tests.tiers import quick

SPEC = EnvSpec("made up", (4,), np.dtype(np.float32), 3, (), None, None, 10)
GAMMA, LAMBDA, STEPS, COPIES = 0.9, 0.7, 6, 8


def q_values(params: dict, x: np.ndarray) -> np.ndarray:
    own = params["params"]
    for i in range(2):
        x = dense(own["torso"][f"Dense_{i}"], x)
        norm = own["torso"][f"LayerNorm_{i}"]
        mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
        x = np.maximum((x - mean) / np.sqrt(variance + 1e-6) * norm["scale"] + norm["bias"], 0)
    return dense(own["Dense_0"], x)


def test_returns_gradient_and_order() -> None:
    config = pqn.Config(
        network=NetworkConfig(hidden=(8, 6), layer_norm=True),
        epochs=2,
        minibatches=3,
        gamma=GAMMA,
        return_lambda=LAMBDA,
    )
    agent = pqn.make(config, SPEC, num_envs=COPIES)
    hypers = {k: jnp.float32(v) for k, v in traced_values(config).items()}
    state = jax.jit(agent.init)(jax.random.key(0), hypers)
    state = state._replace(params=jax.tree.map(lambda p: p + 0.01, state.params))
    batch = windows(STEPS, COPIES, 4, 3)
    # within an episode the next observation is what is seen next
    data = jax.tree.map(np.array, batch.data)
    going = ~data.last[:-1]
    data.next_obs[:-1][going] = data.obs[1:][going]
    batch = batch._replace(data=jax.tree.map(jnp.asarray, data))
    assert agent.minibatches is not None
    rows = jax.jit(agent.minibatches)(state, batch, jax.random.key(1)).data

    params = as_float64(state.params)
    following = q_values(params, data.next_obs.astype(np.float64)).max(axis=-1)
    goal = np.zeros((STEPS, COPIES))
    for j in range(COPIES):
        for t in reversed(range(STEPS)):
            ends = data.last[t, j] or t == STEPS - 1
            later = following[t, j]
            if not ends:
                later = (1 - LAMBDA) * following[t, j] + LAMBDA * goal[t + 1, j]
            goal[t, j] = data.reward[t, j] + GAMMA * data.discount[t, j] * later
    assert rows.target.shape == (6, STEPS * COPIES // 3)
    for epoch in range(2):  # every step once per epoch
        found = np.sort(np.asarray(rows.target[3 * epoch : 3 * epoch + 3]).reshape(-1))
        np.testing.assert_allclose(found, np.sort(goal.reshape(-1)), rtol=1e-4, atol=1e-5)

    one = jax.tree.map(lambda x: x[0], rows)
    grads, info = jax.jit(agent.gradient)(state, batch._replace(data=one), jax.random.key(2))
    obs, action, target = (np.asarray(x, np.float64) for x in one)

    def loss(params: dict) -> float:
        value = q_values(params, obs)[np.arange(len(target)), action.astype(int)]
        return float(0.5 * ((target - value) ** 2).mean())

    assert_gradient(loss, state.params, grads)
    np.testing.assert_allclose(info.metrics["loss"], loss(params), rtol=1e-4)


@pytest.mark.parametrize("env", quick(["ProbeBoth", "ProbeTruncation"], ["ProbeTruncation"]))
def test_probe(env) -> None:
    agent = {
        "name": "pqn",
        "network": {"hidden": [16]},
        "epochs": 2,
        "minibatches": 2,
        "gamma": 0.7,  # as in the probes of DQN: values of endless episodes are learned soon
        "learning_rate": 1e-2,
        "learning_rate_final": 0.0,
        "epsilon_end": 0.3,
    }
    iterations = 600
    parts, hypers = parts_of(agent, env, num_envs=16, unroll_length=8, total=iterations * 128)
    learner, _ = train(parts, hypers, iterations)
    if env == "ProbeBoth":
        obs, keys = jnp.array([[-1.0], [1.0]]), jax.random.split(jax.random.key(0), 2)
        best, _, _ = parts.agent.act(parts.agent.actor(learner), (), obs, keys, True)
        np.testing.assert_array_equal(best, [0, 1])
        return
    own = as_float64(learner.params)["params"]
    hidden = np.maximum(dense(own["torso"]["Dense_0"], np.zeros((1, 1))), 0)
    np.testing.assert_allclose(dense(own["Dense_0"], hidden).max(), 1 / (1 - 0.7), rtol=0.06)


def test_continuous_actions_are_refused() -> None:
    bounds = np.ones(2, np.float32)
    spec = SPEC._replace(num_actions=None, action_shape=(2,), action_low=-bounds, action_high=bounds)
    with pytest.raises(UserError, match="discrete actions"):
        pqn.make(pqn.Config(), spec, num_envs=1)
