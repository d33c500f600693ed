"""Dyna-Q: losses against NumPy, what plans consist of, what the model learns."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.agents import dyna_q, world
from jaxrl_hpc.config import from_dict
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.networks.torso import NetworkConfig
from jaxrl_hpc.networks.world_model import WorldModel
from jaxrl_hpc.runtime.build import build, hypers_of
from jaxrl_hpc.schema import traced_values
from jaxrl_hpc.types import Agent, Batch, EnvSpec, LearnerState
from tests.agents.numpy_check import as_float64, assert_gradient, dense, huber, n_step, q_network, windows

SPEC = EnvSpec("made up", (4,), np.dtype(np.float32), 3, (), None, None, 10)
COUNT, PLANS = 16, 3


@lru_cache
def start(steps: int = 2, members: int = 2) -> tuple[Agent, LearnerState]:
    """An agent that has seen some steps, with a target of its own."""
    config = dyna_q.Config(
        network=NetworkConfig(hidden=(8,)), n_step=steps, batch_size=COUNT, planning_updates=PLANS,
        ensemble=members, model_hidden=(7,), gamma=0.9, huber_delta=0.7, model_tolerance=0.5,
        target_every=0, target_rate=0.1,
    )  # fmt: skip
    agent = dyna_q.make(config, SPEC, num_envs=4)
    hypers = {k: jnp.float32(v) for k, v in traced_values(config).items()}
    init = jax.jit(agent.init)
    state, other = init(jax.random.key(0), hypers), init(jax.random.key(1), hypers)
    state = state._replace(target=other.params["q"])
    assert agent.statistics is not None and agent.update_statistics is not None
    seen = windows(8, 8, 4, 3, seed=9).data
    return agent, agent.update_statistics(state, jax.jit(agent.statistics)(state, seen))


def standard(statistics: Any, x: np.ndarray) -> np.ndarray:
    return (x - statistics.mean) / (np.sqrt(statistics.m2 / statistics.number) + 1e-3)


def model_outputs(params: dict, known: world.Knowledge, obs: np.ndarray, action: np.ndarray) -> np.ndarray:
    """[members, N, D + 2]"""
    x = np.concatenate([standard(known.state, obs), np.eye(3)[action]], axis=-1)
    outputs, own = [], params["params"]
    for i in range(len(own) // 2):
        hidden = dense(own[f"MLP_{i}"]["Dense_0"], x)
        outputs.append(dense(own[f"Dense_{i}"], hidden / (1 + np.exp(-hidden))))
    return np.stack(outputs)


def test_gradients_of_a_real_batch() -> None:
    agent, state = start()
    state = state._replace(step=jnp.int32(PLANS))  # the last of a plan
    batch = windows(2, COUNT, 4, 3)
    grads, info = jax.jit(agent.gradient)(state, batch, jax.random.key(0))
    data, weight, rows = as_float64(batch.data), as_float64(batch.weight), np.arange(COUNT)

    rewards, discounts, finals = n_step(batch, 0.9)
    next_obs = data.next_obs[finals, rows]
    online, target = as_float64(state.params["q"]), as_float64(state.target)
    choice = q_network(online, next_obs).argmax(axis=-1)
    goal = rewards + discounts * q_network(target, next_obs)[rows, choice]
    action = np.asarray(batch.data.action[0])

    def error(params: dict) -> np.ndarray:
        return goal - q_network(params, data.obs[0])[rows, action]

    assert_gradient(lambda p: float(np.mean(weight * huber(error(p), 0.7))), state.params["q"], grads["q"])
    np.testing.assert_allclose(info.priority, np.abs(error(online)), rtol=1e-4, atol=1e-5)

    known = as_float64(state.aux)
    obs, after = data.obs.reshape(-1, 4), data.next_obs.reshape(-1, 4)
    end = 1 - data.discount.reshape(-1)

    def model_loss(params: dict) -> float:
        found = model_outputs(params, known, obs, np.asarray(batch.data.action).reshape(-1))
        change = ((found[..., :4] - standard(known.change, after - obs)) ** 2).mean(axis=-1)
        reward = (found[..., 4] - standard(known.reward, data.reward.reshape(-1))) ** 2
        entropy = np.log1p(np.exp(found[..., 5])) - end * found[..., 5]
        return float((change + reward + entropy).mean(axis=1).sum())

    assert_gradient(model_loss, state.params["model"], grads["model"])


@pytest.mark.parametrize("trusted", [True, False])
def test_simulated_batches_leave_the_model_alone_and_all_else_while_it_is_poor(trusted: bool) -> None:
    agent, state = start()
    batch = windows(2, COUNT, 4, 3)
    real = state._replace(step=jnp.int32(PLANS))  # the last of a plan: momentum for what follows
    apply = jax.jit(agent.apply)
    state = apply(real, jax.jit(agent.gradient)(real, batch, jax.random.key(0))[0])
    tolerance = state.aux.error * (1.01 if trusted else 0.99)
    state = state._replace(hypers=state.hypers | {"model_tolerance": tolerance})
    grads, _ = jax.jit(agent.gradient)(state, batch, jax.random.key(0))
    if not trusted:
        grads = jax.tree.map(jnp.zeros_like, grads)  # as their weights make it
    new = apply(state, grads)
    assert new.step == state.step + 1
    jax.tree.map(np.testing.assert_array_equal, new.params["model"], state.params["model"])
    jax.tree.map(np.testing.assert_array_equal, new.opt["model"], state.opt["model"])
    for before, after in (
        (state.params["q"], new.params["q"]),
        (state.opt["q"], new.opt["q"]),
        (state.target, new.target),
    ):
        same = jax.tree.map(lambda x, y: bool((x == y).all()), before, after)
        assert all(jax.tree.leaves(same)) is not trusted


def planned(state: LearnerState, batch: Batch, **hypers: float) -> Batch:
    agent, _ = start()
    assert agent.minibatches is not None
    changed = state.hypers | {k: jnp.float32(v) for k, v in hypers.items()}
    return jax.jit(agent.minibatches)(state._replace(hypers=changed), batch, jax.random.key(4))


def test_a_plan_is_simulated_batches_and_then_the_real_one() -> None:
    _, state = start()
    batch = windows(2, COUNT, 4, 3)
    plan = planned(state, batch)
    assert plan.data.reward.shape == (PLANS + 1, 2, COUNT)
    jax.tree.map(lambda p, b: np.testing.assert_array_equal(p[-1], b), plan.data, batch.data)
    np.testing.assert_array_equal(plan.weight[-1], batch.weight)
    np.testing.assert_array_equal(plan.index[-1], batch.index)
    real_states = {row.tobytes() for row in np.asarray(batch.data.obs[0])}
    assert all(row.tobytes() in real_states for row in np.asarray(plan.data.obs[:-1, 0]).reshape(-1, 4))
    np.testing.assert_array_equal(plan.data.next_obs[:-1, 0], plan.data.obs[:-1, 1])
    np.testing.assert_array_equal(plan.data.last[:-1], plan.data.discount[:-1] < 0.5)


def test_simulated_steps_are_those_of_a_member() -> None:
    _, state = start()
    simulated = jax.tree.map(
        lambda x: x[:-1, 0].reshape(-1, *x.shape[3:]), planned(state, windows(2, COUNT, 4, 3)).data
    )
    known = as_float64(state.aux)
    found = model_outputs(
        as_float64(state.params["model"]),
        known,
        np.asarray(simulated.obs, np.float64),
        np.asarray(simulated.action),
    )
    spread = np.sqrt(known.change.m2 / known.change.number) + 1e-3
    candidates = simulated.obs + known.change.mean + found[..., :4] * spread  # [members, N, D]
    distance = np.abs(candidates - np.asarray(simulated.next_obs)).max(axis=-1)
    assert (distance.min(axis=0) < 1e-4).all()
    chosen = distance.argmin(axis=0)
    assert 0.2 < chosen.mean() < 0.8  # both members are asked
    goes_on = 1 / (1 + np.exp(found[chosen, np.arange(len(chosen)), 5]))
    np.testing.assert_allclose(simulated.discount, goes_on, rtol=1e-4, atol=1e-5)


def test_simulated_steps_count_once_the_model_is_good_enough() -> None:
    _, state = start()
    batch = windows(2, COUNT, 4, 3)
    error = float(state.aux.error)
    assert (planned(state, batch, model_tolerance=error * 1.01).weight[:-1] == 1).all()
    assert (planned(state, batch, model_tolerance=error * 0.99).weight[:-1] == 0).all()


def test_sweeping_starts_where_values_are_most_wrong() -> None:
    agent, state = start(steps=1, members=1)
    batch = windows(1, COUNT, 4, 3)
    assert agent.minibatches is not None

    def mean_error(power: float) -> float:
        swept = state._replace(hypers=state.hypers | {"sweep_power": jnp.float32(power)})
        plan = jax.jit(agent.minibatches)(swept, batch, jax.random.key(4))
        part = jax.tree.map(lambda x: x[0], plan)
        return float(jax.jit(agent.gradient)(state, part, jax.random.key(0))[1].priority.mean())

    assert mean_error(0.0) * 1.2 < mean_error(4.0)


def test_error_on_new_steps_is_measured_before_learning_from_them() -> None:
    agent, state = start()
    steps = windows(3, 5, 4, 3, seed=5).data
    assert agent.statistics is not None and agent.update_statistics is not None
    new = agent.update_statistics(state, jax.jit(agent.statistics)(state, steps))
    known, data = as_float64(state.aux), as_float64(steps)
    found = model_outputs(
        as_float64(state.params["model"]),
        known,
        data.obs.reshape(-1, 4),
        np.asarray(steps.action).reshape(-1),
    )
    change = (data.next_obs - data.obs).reshape(-1, 4)
    square = ((found[..., :4] - standard(known.change, change)) ** 2).mean(axis=-1)
    square += (found[..., 4] - standard(known.reward, data.reward.reshape(-1))) ** 2
    expected = 0.99 * known.error + 0.01 * square.mean()
    np.testing.assert_allclose(new.aux.error, expected, rtol=1e-4)
    wrong = ((found[..., 5] > 0) != (data.discount.reshape(-1) == 0)).mean()
    np.testing.assert_allclose(new.aux.mistaken, 0.99 * known.mistaken + 0.01 * wrong, rtol=1e-4)


def test_the_model_learns_a_linear_world() -> None:
    """s' = s + M s + b a, r = s_0, the end where s_1 > 1: predicted on steps never learned from."""
    agent, state = start(steps=1, members=1)
    mix = jax.random.normal(jax.random.key(1), (4, 4)) * 0.3

    def steps(key: jax.Array, count: int) -> Batch:
        obs_key, action_key = jax.random.split(key)
        obs = jax.random.normal(obs_key, (1, count, 4))
        action = jax.random.randint(action_key, (1, count), 0, 3)
        next_obs = obs + obs @ mix + 0.5 * action[..., None]
        ended = obs[..., 1] > 1
        data = windows(1, count, 4, 3).data._replace(
            obs=obs, action=action, reward=obs[..., 0], discount=1.0 - ended, last=ended, next_obs=next_obs
        )
        return Batch(data, jnp.ones(count), jnp.arange(count, dtype=jnp.int32))

    def update(state: LearnerState, key: jax.Array):
        batch = steps(key, 64)
        assert agent.statistics is not None and agent.update_statistics is not None
        state = agent.update_statistics(state, agent.statistics(state, batch.data))
        state = agent.apply(state, agent.gradient(state, batch, key)[0])
        return state._replace(step=jnp.int32(PLANS)), state.aux.error

    state = state._replace(
        step=jnp.int32(PLANS), hypers=state.hypers | {"model_learning_rate": jnp.float32(0.01)}
    )
    state, errors = jax.jit(lambda s: jax.lax.scan(update, s, jax.random.split(jax.random.key(2), 1500)))(
        state
    )
    assert errors[0] > 0.5
    assert errors[-1] < 0.05
    assert state.aux.mistaken < 0.05


def test_members_are_independent() -> None:
    model = WorldModel(3, (5,), 4)
    params = model.init(jax.random.key(0), jnp.zeros((1, 4)), jnp.zeros((1, 3)))
    found = model.apply(params, jnp.ones((2, 4)), jnp.ones((2, 3)))
    assert found.change.shape == (3, 2, 4) and found.reward.shape == found.end.shape == (3, 2)
    assert len({float(x) for x in found.reward[:, 0]}) == 3


def test_unfit_environments_are_refused() -> None:
    with pytest.raises(UserError, match="vector observations"):
        dyna_q.make(dyna_q.Config(), SPEC._replace(obs_shape=(10, 10, 4)), num_envs=1)
    with pytest.raises(UserError, match="discrete actions"):
        dyna_q.make(dyna_q.Config(), SPEC._replace(num_actions=None), num_envs=1)


@pytest.mark.parametrize(
    ("env", "normalise"),
    [
        pytest.param("FrozenLake-misc", {}, marks=pytest.mark.full),
        ("CartPole-v1", {"observation": True, "reward": True}),
    ],
)
def test_runs_with_discrete_observations_and_with_normalised_ones(env: str, normalise: dict) -> None:
    config = from_dict(
        {
            "agent": {"name": "dyna_q", "network": {"hidden": [8]}, "batch_size": 8, "normalise": normalise},
            "env": {"name": env},
            "replay": {"name": "uniform", "capacity": 256, "min_size": 32},
            "workflow": {"name": "fused", "num_envs": 4},
        }
    )
    flow = build(config).workflow
    hypers = jax.tree.map(jnp.float32, hypers_of(config))
    assert flow.warmup is not None

    def run(key: jax.Array) -> LearnerState:
        state, _ = flow.step(flow.warmup(flow.init(key, hypers)), jnp.int32(30))
        return flow.learner(state)

    learner = jax.jit(run)(jax.random.key(0))
    assert learner.step == 30 * 5
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves((learner.params, learner.aux)))
    own = learner.aux["agent"] if normalise else learner.aux
    assert own.state.number > 30 * 4  # the model's statistics too


def test_target_copies_are_counted_in_updates_that_counted() -> None:
    """While the model is poor only the real batch of a plan counts, not the simulated ones."""
    config = dyna_q.Config(network=NetworkConfig(hidden=(8,)), planning_updates=PLANS, target_every=3)
    agent = dyna_q.make(config, SPEC, num_envs=4)
    hypers = {k: jnp.float32(v) for k, v in traced_values(config).items()}
    state = jax.jit(agent.init)(jax.random.key(0), hypers)
    batch = windows(1, 8, 4, 3)
    update = jax.jit(lambda s: agent.apply(s, agent.gradient(s, batch, jax.random.key(1))[0]))
    copied = []
    for number in range(7 * (PLANS + 1)):
        new = update(state)
        if any(
            (a != b).any() for a, b in zip(*map(jax.tree.leaves, (new.target, state.target)), strict=True)
        ):
            copied.append(number + 1)
        state = new
    assert copied == [3 * (PLANS + 1), 6 * (PLANS + 1)]
