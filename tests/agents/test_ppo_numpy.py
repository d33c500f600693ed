"""PPO's plan and loss against those written out in NumPy: every kind of policy, with and without memory."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from jaxrl_hpc.workflows import update
from tests.agents.numpy_actor_critic import GAMMA, LAMBDA, estimate, look, policy, with_ends
from tests.agents.numpy_check import as_float64, assert_gradient
from tests.agents.onpolicy import parts_of, unroll
from tests.tiers import quick

CLIP, REACH = 0.1, 0.3
SETTINGS: dict[str, Any] = {
    "name": "ppo",
    "network": {"hidden": [6], "activation": "tanh"},
    "gamma": GAMMA,
    "gae_lambda": LAMBDA,
    "value_coef": 0.7,
    "entropy_coef": 0.0,
    "clip": CLIP,
    "clip_value_range": REACH,
    "epochs": 1,
    "minibatches": 1,  # of all steps, so that their order does not matter
}
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "categorical": ({"entropy_coef": 0.03}, "CartPole-v1"),
    "categorical lstm": ({"lstm": 5}, "CartPole-v1"),
    "gaussian": ({"entropy_coef": 0.03, "log_std": -0.5}, "Pendulum-v1"),
    "gaussian, value clipped": ({"log_std": -0.5, "clip_value": True}, "Pendulum-v1"),
    "tanh": ({"distribution": "tanh", "state_std": True, "log_std": -0.5}, "Pendulum-v1"),
}


def moved(params: Any, by: float) -> Any:
    return jax.tree.map(lambda x: x + by * jax.random.normal(jax.random.key(x.size), x.shape), params)


@pytest.mark.parametrize("case", quick(CASES, ["categorical", "gaussian, value clipped"]))
def test_gradient(case: str) -> None:
    options, env = CASES[case]
    parts, hypers = parts_of(SETTINGS | options, env)
    state = jax.jit(parts.agent.init)(jax.random.key(3), hypers["agent"])
    acted = state._replace(params=moved(state.params, 0.3))
    now = state._replace(params=moved(acted.params, 0.15))
    data = with_ends(unroll(parts, acted, 12, 4))
    batches = jax.jit(parts.agent.minibatches)(acted, update.as_batch(data), jax.random.key(0))
    batch = jax.tree.map(lambda x: x[0], batches)
    grads, info = jax.jit(parts.agent.gradient)(now, batch, jax.random.key(1))

    known, width = as_float64(data), options.get("lstm", 0)
    _, before, following = look(as_float64(acted.params), known, width)
    behaviour = known.extras["log_prob"]
    advantage = estimate(known, before, following)
    goal = before + advantage
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)

    def loss(params: dict) -> float:
        features, value, _ = look(params, known, width)
        log_prob, entropy = policy(params, features, known, options)
        ratio = np.exp(log_prob - behaviour)
        gain = np.minimum(ratio * advantage, np.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage)
        square = (value - goal) ** 2
        if options.get("clip_value"):
            square = np.maximum(square, (np.clip(value, before - REACH, before + REACH) - goal) ** 2)
        total = -gain.mean() + 0.7 * 0.5 * square.mean()
        return float(total - options.get("entropy_coef", 0.0) * entropy.mean())

    assert_gradient(loss, now.params, grads)
    assert 0.05 < float(info.metrics["clipped"]) < 0.95, "both sides of the clip are there"
