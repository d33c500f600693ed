"""A2C: its gradient against rlax, memory across episode ends, policy lag."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.agents.actor_critic import make_core
from jaxrl_hpc.networks.recurrent import LSTM, initial_carry, starts_of
from jaxrl_hpc.types import Agent, LearnerState, Unrolls, UpdateInfo
from jaxrl_hpc.workflows import fused, update
from tests.agents.onpolicy import config_of, parts_of, unroll
from tests.tiers import quick

with warnings.catch_warnings():  # a dependency of rlax uses what JAX has deprecated
    warnings.simplefilter("ignore")
    import rlax

SMALL = {"name": "a2c", "network": {"hidden": [8], "activation": "tanh"}}


def start(agent: dict, env: str, **sizes) -> tuple:
    parts, hypers = parts_of(agent, env, **sizes)
    return parts, parts.agent.init(jax.random.key(3), hypers["agent"])


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # rlax clips by old names
def test_gradient_is_that_of_rlax():
    settings = SMALL | {"gae_lambda": 0.9, "rho_bar": 1.3, "entropy_coef": 0.02}
    parts, state = start(settings, "CartPole-v1")
    data = unroll(parts, state, 40, 4)
    data = data._replace(discount=data.discount * (1 - data.last))
    assert data.last.any()
    # as if another policy had acted
    behaviour = data.extras["log_prob"] + 0.3 * jax.random.normal(jax.random.key(0), data.reward.shape)
    data = data._replace(extras={"log_prob": behaviour})
    core = make_core(config_of(settings), parts.env.spec)

    def one_copy(logits, value, last_value, action, reward, discount, behaviour):
        rho = jnp.exp(jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], -1)[:, 0] - behaviour)
        ahead = jnp.concatenate([value[1:], last_value[None]])
        found = rlax.vtrace_td_error_and_advantage(
            *jax.lax.stop_gradient((value, ahead)), reward, 0.99 * discount, jax.lax.stop_gradient(rho),
            0.9, 1.3, 1.3,
        )  # fmt: skip
        ones = jnp.ones_like(reward)
        policy = rlax.policy_gradient_loss(logits, action, found.pg_advantage, ones)
        goal = jax.lax.stop_gradient(value) + found.errors
        return policy + 0.5 * 0.5 * jnp.mean((goal - value) ** 2) + 0.02 * rlax.entropy_loss(logits, ones)

    def reference(params):
        view = core.view(params, data.obs, ())
        last_value = core.view(params, data.next_obs, ()).value[-1]
        losses = jax.vmap(one_copy, (1, 1, 0, 1, 1, 1, 1))(
            view.outputs, view.value, last_value, data.action, data.reward, data.discount, behaviour
        )
        return losses.mean()

    found, _ = jax.jit(parts.agent.gradient)(state, update.as_batch(data), jax.random.key(0))
    expected = jax.jit(jax.grad(reference))(state.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, expected)


def test_lstm_over_an_episode_end_equals_two_separate_episodes():
    network = LSTM(6)
    inputs = jax.random.normal(jax.random.key(0), (9, 3, 4))
    last = jnp.zeros((9, 3), bool).at[4].set(True)
    carry = jax.tree.map(lambda x: x + 0.5, initial_carry(3, 6))
    params = network.init(jax.random.key(1), inputs, carry, starts_of(last))
    whole = network.apply(params, inputs, carry, starts_of(last))
    never = jnp.zeros((5, 3), bool)
    first = network.apply(params, inputs[:5], carry, never)
    second = network.apply(params, inputs[5:], initial_carry(3, 6), never[:4])
    for joined, a, b in zip(whole, first, second, strict=True):
        np.testing.assert_allclose(joined, jnp.concatenate([a, b]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("skip", [0, 17])
def test_learner_sees_the_probabilities_that_the_actor_saw_with_memory(skip):
    """An unroll that starts inside episodes and crosses their ends."""
    parts, state = start(SMALL | {"lstm": 5}, "CartPole-v1")
    # away from the start, where the policy hardly depends on its memory
    params = jax.tree.map(
        lambda x: x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape), state.params
    )
    state = state._replace(params=params)
    data = unroll(parts, state, 40, 4, skip=skip)
    assert data.last[:-1].any()
    core = make_core(config_of(SMALL | {"lstm": 5}), parts.env.spec)
    view = core.view(params, data.obs, core.memory(data))
    np.testing.assert_allclose(
        core.distribution.log_prob(view.outputs, data.action), data.extras["log_prob"], rtol=1e-4, atol=1e-5
    )
    # and it is the memory that does it: without the restarts they differ
    wrong = core.view(params, data.obs, (core.memory(data)[0], jnp.zeros_like(data.last)))
    found = core.distribution.log_prob(wrong.outputs, data.action)
    assert jnp.abs(found - data.extras["log_prob"]).max() > 1e-2


def test_values_after_truncation_with_memory_are_those_of_the_step_that_follows():
    """V(s'_t) inside an episode is V(s_{t+1}); evaluating it by hand must give the same."""
    parts, state = start(SMALL | {"lstm": 5}, "ProbeTruncation")
    data = unroll(parts, state, 6, 3)
    core = make_core(config_of(SMALL | {"lstm": 5}), parts.env.spec)
    view = core.view(state.params, data.obs, core.memory(data))
    found = core.next_value(state.params, data, view)
    assert data.last[1].all() and (data.discount == 1).all()
    for t in (1, 5):  # truncated: the observation before the reset, with the memory of the old episode
        carry = jax.tree.map(lambda x, t=t: x[t], view.memory)
        by_hand = core.view(state.params, data.next_obs[t][None], (carry, jnp.zeros((1, 3), bool))).value[0]
        np.testing.assert_allclose(found[t], by_hand, rtol=1e-5)
    np.testing.assert_allclose(found[0], view.value[1], rtol=1e-6)


@pytest.mark.parametrize(("env", "distribution"), [("Pendulum-v1", "gaussian"), ("Pendulum-v1", "tanh")])
def test_continuous_actions_stay_in_bounds_and_their_probabilities_survive(env, distribution):
    parts, state = start(SMALL | {"distribution": distribution, "log_std": 1.0}, env)
    data = unroll(parts, state, 30, 4)
    spec = parts.env.spec
    assert (data.action >= spec.action_low).all() and (data.action <= spec.action_high).all()
    _, info = jax.jit(parts.agent.gradient)(state, update.as_batch(data), jax.random.key(0))
    assert float(info.metrics["rho"]) == pytest.approx(1.0, abs=1e-4)


def counting_agent(updates_per_unroll: int) -> Agent:
    """An agent whose parameter is the number of its updates, and which tells with what it acted."""

    def init(key, hypers):
        return LearnerState(jnp.float32(0), (), (), hypers, (), jnp.int32(0), jnp.float32(0))

    def act(params, carry, obs, key, greedy):
        return jnp.zeros(obs.shape[0], jnp.int32), carry, jnp.full(obs.shape[0], params)

    def gradient(state, batch, key):
        acted_with = batch.data.extras
        return jnp.float32(0), UpdateInfo(
            {"age": state.params - acted_with.mean(), "spread": acted_with.std()}, jnp.zeros(0)
        )

    def apply(state, grads, statistics=()):
        return state._replace(params=state.params + 1, step=state.step + 1)

    def plan(state, batch, key):
        return jax.tree.map(lambda x: jnp.repeat(x[None], updates_per_unroll, axis=0), batch)

    return Agent(
        Unrolls(), init, lambda s: s.params, lambda ids: (), act, gradient, apply,
        plan if updates_per_unroll > 1 else None,
    )  # fmt: skip


LAGS = [(0, 1), (1, 1), (3, 1), (3, 4), (2, 5)]


@pytest.mark.parametrize(("lag", "updates"), quick(LAGS, [(0, 1), (3, 4)]))
def test_actor_lag_acts_with_parameters_that_old(lag, updates):
    parts, _ = parts_of(SMALL, "ProbeValue")
    flow = fused.make(
        fused.Config(num_envs=2, unroll_length=3, actor_lag=lag),
        parts.env,
        counting_agent(updates),
        None,
        1000,
    )
    state = flow.init(jax.random.key(0), {"agent": {}})
    step = jax.jit(flow.step)
    within = (updates - 1) / 2  # mean over the updates that follow an unroll
    for iteration in range(9):
        state, metrics = step(state, 1)
        assert metrics["spread"] < 1e-6
        assert float(metrics["age"]) == pytest.approx(min(iteration, lag) * updates + within, abs=1e-4)
