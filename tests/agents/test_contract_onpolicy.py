"""What every workflow relies on, for A2C, PPO and PQN with each of their options."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.workflows import update
from tests.agents.onpolicy import parts_of, unroll

NETWORK = {"network": {"hidden": [8]}}
PPO = {"name": "ppo", "epochs": 2, "minibatches": 2} | NETWORK
A2C = {"name": "a2c"} | NETWORK
BOTH = {"observation": True, "reward": True}
CASES = {
    "a2c": (A2C, "CartPole-v1"),
    "a2c-lstm-normalised": (A2C | {"lstm": 4, "normalise": BOTH}, "CartPole-v1"),
    "a2c-squashed": (A2C | {"distribution": "tanh", "state_std": True}, "Pendulum-v1"),
    "pqn": (PPO | {"name": "pqn", "normalise": BOTH}, "CartPole-v1"),
    "ppo-lstm": (PPO | {"lstm": 4}, "CartPole-v1"),
    "ppo-continuous-normalised": (PPO | {"normalise": BOTH, "kl_stop": True}, "Pendulum-v1"),
}


SLOW = ("a2c", "ppo-lstm")  # the others go through the same code and more
MARKS = dict.fromkeys(SLOW, pytest.mark.slow) | {"a2c-squashed": pytest.mark.full, "pqn": pytest.mark.full}


@pytest.fixture(
    scope="module",
    params=[pytest.param(n, marks=MARKS.get(n, ()), id=n) for n in CASES],
)
def made(request):
    parts, hypers = parts_of(*CASES[request.param])
    state = jax.jit(parts.agent.init)(jax.random.key(0), hypers["agent"])
    return parts, hypers, state, unroll(parts, state, 6, 4)


def test_actions_fit_the_spec_and_extras_have_a_row_per_copy(made):
    parts, _, state, data = made
    spec = parts.env.spec
    assert data.action.shape == (6, 4, *spec.action_shape) and data.action.dtype == spec.action_dtype
    assert all(leaf.shape[:2] == (6, 4) for leaf in jax.tree.leaves(data.extras))
    obs, keys = data.obs[0], jax.random.split(jax.random.key(1), 4)
    act = jax.jit(parts.agent.act, static_argnums=4)
    first, carry, _ = act(parts.agent.actor(state), parts.agent.carry(jnp.arange(4)), obs, keys, True)
    again, _, _ = act(parts.agent.actor(state), parts.agent.carry(jnp.arange(4)), obs, keys[::-1], True)
    np.testing.assert_array_equal(first, again)  # greedy: no randomness
    fresh = jax.tree.map(lambda x: (x.shape, x.dtype), parts.agent.carry(jnp.arange(4)))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), carry) == fresh


def test_a_copy_acts_the_same_whoever_else_is_in_the_batch(made):
    parts, _, state, data = made
    keys = jax.random.split(jax.random.key(2), 4)
    actor = parts.agent.actor(state)
    act = jax.jit(parts.agent.act, static_argnums=4)
    together, _, _ = act(actor, parts.agent.carry(jnp.arange(4)), data.obs[0], keys, False)
    alone, _, _ = act(actor, parts.agent.carry(jnp.arange(2)), data.obs[0, 2:], keys[2:], False)
    np.testing.assert_allclose(together[2:], alone, rtol=1e-5)


def test_learning_changes_parameters_keeps_shapes_and_equals_itself_under_vmap(made):
    parts, hypers, state, data = made
    agent = parts.agent

    def learn(key):
        start = agent.init(key, hypers["agent"])
        if agent.statistics is not None:
            start = agent.update_statistics(start, agent.statistics(start, data))
        return update.learn(agent, start, update.as_batch(data), key)[:2]

    keys = jax.random.split(jax.random.key(3), 16)
    alone, metrics = jax.jit(learn)(keys[1])
    lanes, _ = jax.jit(jax.vmap(learn))(keys)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a[1], b, rtol=2e-3, atol=2e-4), lanes.params, alone.params
    )
    assert all(np.isfinite(value) for value in metrics.values())
    assert alone.step == (4 if agent.minibatches is not None else 1)
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), alone) == shapes
    before = jax.jit(agent.init)(keys[1], hypers["agent"]).params
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), before, alone.params)
    assert max(jax.tree.leaves(moved)) > 0
