"""DQN's loss, targets and exploration against NumPy."""

from __future__ import annotations

import itertools
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.agents import dqn
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.networks.torso import NetworkConfig
from jaxrl_hpc.schema import traced_values
from jaxrl_hpc.types import Agent, EnvSpec, LearnerState
from tests.agents.numpy_check import (
    as_float64,
    assert_gradient,
    dense,
    huber,
    mlp,
    n_step,
    q_network,
    windows,
)
from tests.tiers import quick

SPEC = EnvSpec("made up", (4,), np.dtype(np.float32), 3, (), None, None, 10)
SMALL = NetworkConfig(hidden=(8, 6))


@lru_cache  # frozen configs are hashable
def start(config: dqn.Config, num_envs: int = 4) -> tuple[Agent, LearnerState]:
    """An agent whose target differs from its network, and whose biases are not zero: a unit with no input at
    all would stand on the kink of its activation."""
    agent = dqn.make(config, SPEC, num_envs=num_envs)
    hypers = {k: jnp.float32(v) for k, v in traced_values(config).items()}
    state = jax.jit(agent.init)(jax.random.key(0), hypers)
    other = jax.jit(agent.init)(jax.random.key(1), hypers)
    params = jax.tree.map(lambda p: p + 0.01, state.params)
    return agent, state._replace(params=params, target=other.params)


DUELING: list[dict] = [{}, {"dueling": True}, {"dueling": True, "dueling_hidden": (5,)}]
QUICK = [(1, False, DUELING[0]), (3, True, DUELING[1]), (3, True, DUELING[2])]


@pytest.mark.parametrize(
    ("steps", "double", "dueling"), quick(itertools.product([1, 3], [False, True], DUELING), QUICK)
)
def test_gradient_and_priority(steps: int, double: bool, dueling: dict) -> None:
    config = dqn.Config(network=SMALL, n_step=steps, double=double, gamma=0.9, huber_delta=0.7, **dueling)
    agent, state = start(config)
    batch = windows(steps, 16, 4, 3)
    grads, info = jax.jit(agent.gradient)(state, batch, jax.random.key(2))

    data, weight = as_float64(batch.data), as_float64(batch.weight)
    rewards, discounts, finals = n_step(batch, 0.9)
    rows = np.arange(16)
    next_obs = data.next_obs[finals, rows]
    target, online = as_float64(state.target), as_float64(state.params)
    next_target = q_network(target, next_obs)
    choice = (q_network(online, next_obs) if double else next_target).argmax(axis=-1)
    goal = rewards + discounts * next_target[rows, choice]
    action = np.asarray(batch.data.action[0])

    def error(params: dict) -> np.ndarray:
        return goal - q_network(params, data.obs[0])[rows, action]

    assert_gradient(lambda p: float(np.mean(weight * huber(error(p), 0.7))), state.params, grads)
    np.testing.assert_allclose(info.priority, np.abs(error(online)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(info.metrics["loss"], np.mean(weight * huber(error(online), 0.7)), rtol=1e-4)


def heads(params: dict, x: np.ndarray, atoms: int) -> np.ndarray:
    """Outputs [N, 3, atoms] of a dueling network of distributions."""
    own = params["params"]
    x = mlp(own["torso"], x)
    advantage = dense(own["Dense_0"], x).reshape(-1, 3, atoms)
    value = dense(own["Dense_1"], x).reshape(-1, 1, atoms)
    return value + advantage - advantage.mean(axis=1, keepdims=True)


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("returns", ["c51", "quantile"])
def test_gradient_of_distributions(returns: str) -> None:
    """Double, dueling, three steps: the whole loss again in NumPy, one atom at a time."""
    atoms, low, high, delta = 5, -1.0, 2.0, 0.7
    config = dqn.Config(
        network=SMALL, n_step=3, gamma=0.9, dueling=True, returns=returns, atoms=atoms,
        return_low=low, return_high=high, huber_delta=delta,
    )  # fmt: skip
    agent, state = start(config)
    batch = windows(3, 16, 4, 3)
    grads, info = jax.jit(agent.gradient)(state, batch, jax.random.key(2))
    data, weight = as_float64(batch.data), as_float64(batch.weight)
    rewards, discounts, finals = n_step(batch, 0.9)
    rows, z = np.arange(16), np.linspace(low, high, atoms)
    target, online = as_float64(state.target), as_float64(state.params)
    next_obs = data.next_obs[finals, rows]

    def values(outputs: np.ndarray) -> np.ndarray:
        return softmax(outputs) @ z if returns == "c51" else outputs.mean(axis=-1)

    choice = values(heads(online, next_obs, atoms)).argmax(axis=-1)
    following = heads(target, next_obs, atoms)[rows, choice]
    action = np.asarray(batch.data.action[0])

    def losses(params: dict) -> np.ndarray:
        taken = heads(params, data.obs[0], atoms)[rows, action]
        found = np.zeros(16)
        for n in rows:
            if returns == "quantile":
                for i in range(atoms):
                    for j in range(atoms):
                        error = rewards[n] + discounts[n] * following[n, j] - taken[n, i]
                        side = abs((i + 0.5) / atoms - (error < 0))
                        found[n] += side * huber(error, delta) / atoms
                continue
            goal, spacing = np.zeros(atoms), z[1] - z[0]
            for j, probability in enumerate(softmax(following[n])):
                place = (np.clip(rewards[n] + discounts[n] * z[j], low, high) - low) / spacing
                below = min(int(place), atoms - 2)
                goal[below] += probability * (below + 1 - place)
                goal[below + 1] += probability * (place - below)
            kept = goal > 0
            found[n] = (goal[kept] * np.log(goal[kept] / softmax(taken[n])[kept])).sum()
        return found

    assert_gradient(lambda p: float(np.mean(weight * losses(p))), state.params, grads)
    np.testing.assert_allclose(info.priority, losses(online), rtol=1e-3, atol=1e-5)


def test_noise_is_of_the_copy_and_the_step() -> None:
    agent, state = start(
        dqn.Config(network=SMALL, noisy=True, noise_size=3.0, epsilon_start=0.0, epsilon_end=0.0)
    )
    obs = jnp.tile(jnp.arange(4.0), (64, 1))
    keys = jax.random.split(jax.random.key(3), 64)
    act = jax.jit(agent.act, static_argnums=4)
    taken, _, _ = act(agent.actor(state), {}, obs, keys, False)
    assert len(np.unique(taken)) > 1  # copies that see the same act differently
    best, _, _ = act(agent.actor(state), {}, obs, keys, True)
    assert len(np.unique(best)) == 1  # without noise
    half, _, _ = act(agent.actor(state), {}, obs[:32], keys[32:], False)
    np.testing.assert_array_equal(half, taken[32:])  # wherever the copy is
    batch = windows(1, 8, 4, 3)
    gradient = jax.jit(agent.gradient)
    first, _ = gradient(state, batch, jax.random.key(0))
    other, _ = gradient(state, batch, jax.random.key(1))
    assert not np.allclose(*(jax.tree.leaves(grads)[0] for grads in (first, other)))


def test_range_of_returns_is_checked() -> None:
    with pytest.raises(ValueError, match="return_low is 2"):
        dqn.Config(return_low=2.0, return_high=2.0)


def test_actor_rates_with_its_own_network() -> None:
    agent, state = start(dqn.Config(network=SMALL, n_step=3))
    batch = windows(3, 8, 4, 3)
    assert agent.priority is not None
    found = jax.jit(agent.priority)(agent.actor(state), batch)
    _, info = jax.jit(agent.gradient)(state._replace(target=state.params), batch, jax.random.key(0))
    np.testing.assert_allclose(found, info.priority, rtol=1e-6)


def test_hard_target_is_copied_every_so_often() -> None:
    agent, state = start(dqn.Config(network=SMALL, target_every=3))
    batch = windows(1, 8, 4, 3)
    first = state.target
    for update in range(1, 7):
        grads, _ = jax.jit(agent.gradient)(state, batch, jax.random.key(0))
        state = jax.jit(agent.apply)(state, grads)
        same = jax.tree.map(lambda t, p: bool((t == p).all()), state.target, state.params)
        assert all(jax.tree.leaves(same)) == (update % 3 == 0)
        if update < 3:
            jax.tree.map(np.testing.assert_array_equal, state.target, first)
    assert int(state.step) == 6


def test_soft_target_goes_part_of_the_way() -> None:
    agent, state = start(dqn.Config(network=SMALL, target_every=0, target_rate=0.25))
    grads, _ = jax.jit(agent.gradient)(state, windows(1, 8, 4, 3), jax.random.key(0))
    new = jax.jit(agent.apply)(state, grads)
    expected = jax.tree.map(lambda t, p: 0.75 * t + 0.25 * p, state.target, new.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), new.target, expected)


def test_epsilon_follows_the_schedule() -> None:
    config = dqn.Config(network=SMALL, epsilon_start=1.0, epsilon_end=0.1, epsilon_fraction=0.5)
    agent, state = start(config, num_envs=6000)
    obs = jnp.tile(jnp.arange(4.0), (6000, 1))
    keys = jax.random.split(jax.random.key(3), 6000)
    carry = agent.carry(jnp.arange(6000))
    for progress, epsilon in [(0.0, 1.0), (0.25, 0.55), (0.5, 0.1), (1.0, 0.1)]:
        params = agent.actor(state._replace(progress=jnp.float32(progress)))
        best, _, _ = jax.jit(agent.act, static_argnums=4)(params, carry, obs, keys, True)
        taken, _, _ = jax.jit(agent.act, static_argnums=4)(params, carry, obs, keys, False)
        other = float((taken != best).mean())  # a random action is the best one in a third of cases
        assert abs(other - epsilon * 2 / 3) < 4 * np.sqrt(0.25 / 6000)


def test_ladder_gives_every_copy_its_own_epsilon() -> None:
    config = dqn.Config(network=SMALL, exploration="ladder", ladder_base=0.4, ladder_power=7.0)
    agent, state = start(config, num_envs=3)
    params = agent.actor(state)
    obs, rounds = jnp.ones((3, 4)), 4000
    keys = jax.random.split(jax.random.key(0), (rounds, 3))
    carry = agent.carry(jnp.arange(3))
    taken = jax.vmap(lambda k: agent.act(params, carry, obs, k, False)[0])(keys)
    best = agent.act(params, carry, obs, keys[0], True)[0]
    share = np.asarray((taken != best).mean(axis=0))
    expected = 2 / 3 * np.array([0.4, 0.4**4.5, 0.4**8])
    assert (np.abs(share - expected) < 4 * np.sqrt(expected / rounds) + 1e-3).all()


def test_continuous_actions_are_refused() -> None:
    bounds = np.ones(2, np.float32)
    spec = SPEC._replace(num_actions=None, action_shape=(2,), action_low=-bounds, action_high=bounds)
    with pytest.raises(UserError, match="discrete actions"):
        dqn.make(dqn.Config(), spec, num_envs=1)
