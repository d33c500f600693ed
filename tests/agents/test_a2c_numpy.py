"""A2C's loss with GAE against one written out in NumPy: every kind of policy, with and without memory."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from jaxrl_hpc.workflows import update
from tests.agents.numpy_actor_critic import GAMMA, LAMBDA, estimate, look, policy, with_ends
from tests.agents.numpy_check import as_float64, assert_gradient
from tests.agents.onpolicy import parts_of, unroll
from tests.tiers import quick

SETTINGS: dict[str, Any] = {
    "name": "a2c",
    "vtrace": False,
    "network": {"hidden": [6], "activation": "tanh"},
    "gamma": GAMMA,
    "gae_lambda": LAMBDA,
    "value_coef": 0.7,
    "entropy_coef": 0.0,
}
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "categorical": ({"entropy_coef": 0.03}, "CartPole-v1"),
    "categorical standardised": ({"normalise_advantage": True}, "CartPole-v1"),
    "categorical lstm": ({"lstm": 5}, "CartPole-v1"),
    "gaussian": ({"entropy_coef": 0.03, "log_std": -0.5}, "Pendulum-v1"),
    "tanh": ({"distribution": "tanh", "state_std": True, "log_std": -0.5}, "Pendulum-v1"),
}


@pytest.mark.parametrize("case", quick(CASES, ["categorical lstm", "tanh"]))
def test_gradient(case: str) -> None:
    options, env = CASES[case]
    parts, hypers = parts_of(SETTINGS | options, env)
    state = jax.jit(parts.agent.init)(jax.random.key(3), hypers["agent"])
    state = state._replace(  # away from the start, where policies are all alike
        params=jax.tree.map(
            lambda x: x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape), state.params
        )
    )
    data = with_ends(unroll(parts, state, 12, 4))
    grads, _ = jax.jit(parts.agent.gradient)(state, update.as_batch(data), jax.random.key(0))

    known, width = as_float64(data), options.get("lstm", 0)
    _, value, following = look(as_float64(state.params), known, width)
    advantage = estimate(known, value, following)
    goal = value + advantage
    if options.get("normalise_advantage"):
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)

    def loss(params: dict) -> float:
        features, value, _ = look(params, known, width)
        log_prob, entropy = policy(params, features, known, options)
        total = -(advantage * log_prob).mean() + 0.7 * 0.5 * ((goal - value) ** 2).mean()
        return float(total - options.get("entropy_coef", 0.0) * entropy.mean())

    assert_gradient(loss, state.params, grads)
