"""Recurrent DQN against an LSTM and returns written out in NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.agents import recurrent_dqn
from jaxrl_hpc.networks.recurrent import Carry
from jaxrl_hpc.networks.torso import NetworkConfig
from jaxrl_hpc.ops.returns import sequence_returns
from jaxrl_hpc.schema import traced_values
from jaxrl_hpc.types import Agent, EnvSpec, LearnerState
from tests.agents.numpy_check import as_float64, assert_gradient, dense, huber, mlp, q_network, windows
from tests.tiers import quick

SPEC = EnvSpec("made up", (4,), np.dtype(np.float32), 3, (), None, None, 10)
WIDTH, COUNT = 5, 6


def start(**settings) -> tuple[Agent, LearnerState, recurrent_dqn.Config]:
    config = recurrent_dqn.Config(network=NetworkConfig(hidden=(7,)), lstm=WIDTH, **settings)
    agent = recurrent_dqn.make(config, SPEC, num_envs=4)
    hypers = {k: jnp.float32(v) for k, v in traced_values(config).items()}
    state, other = (jax.jit(agent.init)(jax.random.key(seed), hypers) for seed in (0, 1))
    return agent, state._replace(target=other.params), config


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def lstm_step(params: dict, obs: np.ndarray, cell: np.ndarray, hidden: np.ndarray):
    """One step of every row -> values, cell, hidden."""
    own = params["params"]
    gates = dense(own["LSTM_0"]["Dense_0"], mlp(own["torso"], obs)) + hidden @ own["LSTM_0"]["recurrent"]
    enter, forget, candidate, leave = np.split(gates, 4, axis=-1)
    cell = sigmoid(forget + 1) * cell + sigmoid(enter) * np.tanh(candidate)
    hidden = sigmoid(leave) * np.tanh(cell)
    return q_network(own["head"], hidden), cell, hidden


def replay(params: dict, warm_params: dict, data, burn_in: int):
    """Values of every step and of what it led to; burn-in steps use warm_params. After `last` the memory
    is the stored one."""
    stored = [np.asarray(x, np.float64) for x in data.extras["memory"]]
    cell, hidden = (x[0] for x in stored)
    values, following = [], []
    for t in range(data.reward.shape[0]):
        if t > 0:
            begins = data.last[t - 1][:, None].astype(bool)
            cell, hidden = (
                np.where(begins, old[t], now) for old, now in zip(stored, (cell, hidden), strict=True)
            )
        used = warm_params if t < burn_in else params
        value, cell, hidden = lstm_step(used, data.obs[t], cell, hidden)
        values.append(value)
        following.append(lstm_step(params, data.next_obs[t], cell, hidden)[0])
    return np.stack(values)[burn_in:], np.stack(following)[burn_in:]


def returns(data, next_value: np.ndarray, gamma: float, n: int) -> np.ndarray:
    """One step at a time, looking ahead."""
    steps, count = data.reward.shape
    goal = np.zeros((steps, count))
    for t in range(steps):
        for j in range(count):
            factor = 1.0
            for i in range(t, min(t + n, steps)):
                goal[t, j] += factor * data.reward[i, j]
                factor *= gamma * data.discount[i, j]
                if data.last[i, j] or i == min(t + n, steps) - 1:
                    goal[t, j] += factor * next_value[i, j]
                    break
    return goal


def sequences(steps: int):
    batch = windows(steps, COUNT, 4, 3)
    memory = Carry(*(jax.random.normal(jax.random.key(i), (steps, COUNT, WIDTH)) for i in (7, 8)))
    return batch._replace(data=batch.data._replace(extras={"memory": memory}))


@pytest.mark.parametrize("n", [1, 3, 9])
def test_sequence_returns(n: int) -> None:
    data = windows(6, 12, 4, 3).data
    value = np.random.default_rng(1).normal(size=(6, 12))
    found = sequence_returns(data.reward, data.discount, data.last, jnp.asarray(value, jnp.float32), 0.9, n)
    expected = returns(as_float64(data._replace(last=data.last)), value, 0.9, n)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def root(x: np.ndarray) -> np.ndarray:
    """Rescaled values."""
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 1e-3 * x


def square(h: np.ndarray) -> np.ndarray:
    """Their inverse, as it is published."""
    inner = (np.sqrt(1 + 4e-3 * (np.abs(h) + 1 + 1e-3)) - 1) / 2e-3
    return np.sign(h) * (inner**2 - 1)


OPTIONS = [(0, 1, True, False), (2, 3, True, False), (2, 1, False, False), (2, 3, True, True)]


@pytest.mark.parametrize(("burn_in", "n", "double", "rescale"), quick(OPTIONS, OPTIONS[2:]))
def test_gradient_and_priority(burn_in: int, n: int, double: bool, rescale: bool) -> None:
    settings = {"gamma": 0.9, "huber_delta": 0.7, "priority_mix": 0.8, "rescale": rescale}
    agent, state, _ = start(burn_in=burn_in, length=4, n_step=n, double=double, **settings)
    batch = sequences(burn_in + 4)
    assert agent.needs.length == burn_in + 4
    grads, info = jax.jit(agent.gradient)(state, batch, jax.random.key(0))

    data, weight = as_float64(batch.data), as_float64(batch.weight)
    learned = jax.tree.map(lambda x: x[burn_in:], data._replace(extras=()))
    online, target = as_float64(state.params), as_float64(state.target)
    next_online = replay(online, online, data, burn_in)[1]
    next_target = replay(target, target, data, burn_in)[1]
    choice = (next_online if double else next_target).argmax(axis=-1)
    next_value = np.take_along_axis(next_target, choice[..., None], axis=-1)[..., 0]
    if rescale:
        goal = root(returns(learned, square(next_value), 0.9, n))
    else:
        goal = returns(learned, next_value, 0.9, n)
    action = np.asarray(batch.data.action[burn_in:])[..., None]

    def error(params: dict) -> np.ndarray:
        values = replay(params, online, data, burn_in)[0]  # burn-in is no part of the gradient
        return goal - np.take_along_axis(values, action, axis=-1)[..., 0]

    def loss(params: dict) -> float:
        return float(np.mean(weight * huber(error(params), 0.7).mean(axis=0)))

    assert_gradient(loss, state.params, grads)
    size = np.abs(error(online))
    expected = 0.8 * size.max(axis=0) + 0.2 * size.mean(axis=0)
    np.testing.assert_allclose(info.priority, expected, rtol=1e-3, atol=1e-4)


def test_acting_step_by_step_is_what_learning_replays() -> None:
    agent, state, _ = start(burn_in=0, length=5)
    obs = jax.random.normal(jax.random.key(3), (5, 2, 4))
    carry, memories, chosen = agent.carry(jnp.arange(2)), [], []
    act = jax.jit(agent.act, static_argnums=4)
    for t in range(5):
        action, carry, extras = act(
            agent.actor(state), carry, obs[t], jax.random.split(jax.random.key(t), 2), True
        )
        memories.append(extras["memory"])
        chosen.append(action)
    np.testing.assert_array_equal(memories[0].hidden, np.zeros((2, WIDTH)))
    params = as_float64(state.params)
    cell, hidden = np.zeros((2, WIDTH)), np.zeros((2, WIDTH))
    for t in range(5):
        np.testing.assert_allclose(memories[t].cell, cell, atol=1e-5)  # stored before the step
        values, cell, hidden = lstm_step(params, np.asarray(obs[t], np.float64), cell, hidden)
        np.testing.assert_array_equal(chosen[t], values.argmax(axis=-1))


def test_a_sequence_that_was_cut_goes_on_from_the_stored_memory() -> None:
    """Asynchronous learners mark the end of an unroll as last: what follows is no start of an episode."""
    agent, state, _ = start(burn_in=0, length=6)
    batch = sequences(6)
    whole = batch.data._replace(
        last=jnp.zeros_like(batch.data.last), discount=jnp.ones_like(batch.data.discount)
    )
    two = whole._replace(last=whole.last.at[2].set(True))
    emptied = jax.tree.map(lambda x: x.at[3].set(0.0), two.extras)

    learn = jax.jit(agent.gradient)

    def gradient(data) -> np.ndarray:
        grads, _ = learn(state, batch._replace(data=data), jax.random.key(0))
        return np.concatenate([np.ravel(x) for x in jax.tree.leaves(grads)])

    begun = gradient(two._replace(extras=emptied))
    assert not np.allclose(gradient(two), begun)  # as it was stored, not as a start
    assert not np.allclose(gradient(two), gradient(whole))  # nor what the steps before led to
