"""PPO: its gradient against rlax, the plan, value clipping and the KL stop."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc import rollout
from jaxrl_hpc.agents.actor_critic import make_core
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.ops import advantages
from jaxrl_hpc.workflows import update
from tests.agents.onpolicy import config_of, parts_of, unroll
from tests.tiers import quick

with warnings.catch_warnings():  # a dependency of rlax uses what JAX has deprecated
    warnings.simplefilter("ignore")
    import rlax

SMALL = {"name": "ppo", "network": {"hidden": [8], "activation": "tanh"}, "epochs": 3, "minibatches": 4}


def start(agent: dict, env: str = "CartPole-v1") -> tuple:
    """An agent, and a state whose policy is not the one that will have acted."""
    parts, hypers = parts_of(agent, env)
    state = parts.agent.init(jax.random.key(3), hypers["agent"])
    keys = iter(jax.random.split(jax.random.key(4), 100))
    moved = jax.tree.map(lambda x: x + 0.2 * jax.random.normal(next(keys), x.shape), state.params)
    return parts, state, state._replace(params=moved)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # rlax clips by old names
@pytest.mark.parametrize("clip_value", quick([False, True], [True]))
def test_gradient_is_that_of_rlax(clip_value):
    settings = SMALL | {"clip_value": clip_value, "clip": 0.1, "epochs": 1, "minibatches": 1}
    parts, acted, state = start(settings)
    data = unroll(parts, acted, 16, 4)
    core = make_core(config_of(settings), parts.env.spec)
    batch = jax.jit(parts.agent.minibatches)(acted, update.as_batch(data), jax.random.key(0))
    rows = jax.tree.map(lambda x: x[0], batch)
    found, info = jax.jit(parts.agent.gradient)(state, rows, jax.random.key(1))

    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), data)
    old = core.view(acted.params, data.obs, ())
    goal = advantages.gae(
        data.reward, data.discount, data.last, old.value, core.next_value(acted.params, data, old), 0.99, 0.95
    )
    advantage, target, before = (x.reshape(-1) for x in (*goal, old.value))
    advantage = np.asarray((advantage - advantage.mean()) / (advantage.std() + 1e-8))

    def reference(params):
        view = core.view(params, flat.obs, ())
        chosen = jnp.take_along_axis(jax.nn.log_softmax(view.outputs), flat.action[:, None], -1)[:, 0]
        ratio = jnp.exp(chosen - flat.extras["log_prob"])
        policy = rlax.clipped_surrogate_pg_loss(ratio, advantage, 0.1)
        error = (view.value - target) ** 2
        if clip_value:
            near = jnp.clip(view.value, before - 0.2, before + 0.2)
            error = jnp.maximum(error, (near - target) ** 2)
        entropy = rlax.entropy_loss(view.outputs, jnp.ones_like(target))
        return policy + 0.5 * 0.5 * error.mean() + 0.01 * entropy

    expected = jax.jit(jax.grad(reference))(state.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), found, expected)
    assert float(info.metrics["kl"]) > 0 and float(info.metrics["clipped"]) > 0


@pytest.mark.parametrize("lstm", quick([0, 5], [5]))
def test_plan_deals_out_every_row_once_an_epoch(lstm):
    parts, acted, _ = start(SMALL | {"lstm": lstm})
    data = unroll(parts, acted, 16, 8)
    batch = jax.jit(parts.agent.minibatches)(acted, update.as_batch(data), jax.random.key(0))
    rows = batch.data
    assert rows.value.shape == ((12, 16, 2) if lstm else (12, 32))

    def key_of(obs):
        return np.sort(np.asarray(obs).reshape(-1, 4)[:, 0])

    epochs = np.split(np.asarray(rows.obs), 3)
    for epoch in epochs:
        np.testing.assert_array_equal(key_of(epoch), key_of(data.obs))
    assert not np.array_equal(epochs[0], epochs[1])
    # what belongs together stays together: the behaviour's log-probability of each row's own action
    core = make_core(config_of(SMALL | {"lstm": lstm}), parts.env.spec)
    for i in range(3):
        view = core.view(acted.params, rows.obs[i], jax.tree.map(lambda x, i=i: x[i], rows.memory))
        np.testing.assert_allclose(
            core.distribution.log_prob(view.outputs, rows.raw[i]), rows.log_prob[i], rtol=1e-4, atol=1e-5
        )
        np.testing.assert_allclose(view.value, rows.value[i], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(rows.value[i] + rows.advantage[i], rows.target[i], rtol=1e-4, atol=1e-5)


def test_values_of_acting_are_those_of_another_pass():
    plain, acted, _ = start(SMALL)
    kept, _, other = start(SMALL | {"acting_values": True})
    data = unroll(kept, acted, 16, 8)

    def rows(parts, state):
        return jax.jit(parts.agent.minibatches)(state, update.as_batch(data), jax.random.key(0)).data

    expected, found = rows(plain, acted), rows(kept, acted)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected)
    moved = rows(kept, other)  # a learner that has moved on does not judge the unroll again
    np.testing.assert_array_equal(moved.value, found.value)
    assert (rows(plain, other).value != expected.value).any()
    with pytest.raises(ValueError, match="acting_values: not with an LSTM"):
        config_of(SMALL | {"acting_values": True, "lstm": 4})


def test_minibatches_must_divide_the_unroll():
    parts, acted, _ = start(SMALL | {"minibatches": 7})
    data = unroll(parts, acted, 16, 8)
    with pytest.raises(UserError, match="7 does not divide the unroll's 128 steps"):
        parts.agent.minibatches(acted, update.as_batch(data), jax.random.key(0))


def test_kl_stop_skips_the_rest_of_an_unroll_and_no_more():
    parts, acted, _ = start(SMALL | {"kl_stop": True, "kl_limit": 0.01})
    apply = jax.jit(parts.agent.apply)
    grads = jax.tree.map(jnp.ones_like, acted.params)
    kls = [0.5, 0.0, 0.02, *[0.0] * 9, 0.0, 0.0]  # the first is of an unroll's first update: it counts
    moved, state = [], acted
    for kl in kls:
        new = apply(state, {"params": grads, "kl": jnp.float32(kl)})
        same = jax.tree.map(
            lambda a, b: bool((a == b).all()), (state.params, state.opt), (new.params, new.opt)
        )
        moved.append(not all(jax.tree.leaves(same)))
        state = new
    assert moved == [True, True, *[False] * 10, True, True]
    assert state.step == len(kls)


@pytest.mark.full
def test_without_reaching_the_limit_the_kl_stop_changes_nothing():
    results = []
    for options in ({}, {"kl_stop": True, "kl_limit": 1e6}):
        parts, acted, _ = start(SMALL | options)
        data = unroll(parts, acted, 16, 8)
        learn = jax.jit(lambda s, b, k, agent=parts.agent: update.learn(agent, s, b, k)[:2])
        state, metrics = learn(acted, update.as_batch(data), jax.random.key(0))
        assert metrics.pop("updates_used", 1.0) == 1.0
        results.append((state.params, metrics))  # gradient norms among them: the KL divergence is not in them
    jax.tree.map(np.testing.assert_array_equal, *results)


def test_the_gradient_norm_is_told():
    parts, acted, _ = start(SMALL | {"epochs": 1, "minibatches": 1})
    batch = update.as_batch(unroll(parts, acted, 16, 8))
    _, metrics, _ = jax.jit(lambda s, b, k: update.learn(parts.agent, s, b, k))(
        acted, batch, jax.random.key(0)
    )
    rows = jax.jit(parts.agent.minibatches)(acted, batch, jax.random.key(0))
    one = jax.tree.map(lambda x: x[0], rows)
    grads, _ = jax.jit(parts.agent.gradient)(acted, one, jax.random.key(0))
    expected = np.sqrt(sum(np.sum(np.square(g, dtype=np.float64)) for g in jax.tree.leaves(grads)))
    np.testing.assert_allclose(metrics["grad_norm"], expected, rtol=1e-4)


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_too_few_steps_to_standardise_are_refused(name):
    """Two steps in a minibatch have advantages of 1 and -1, whatever they were."""
    settings = {"name": name, "network": {"hidden": [8]}, "normalise_advantage": True}
    parts, hypers = parts_of(settings, "CartPole-v1")
    state = jax.eval_shape(parts.agent.init, jax.random.key(0), hypers["agent"])

    def learn(state, key, length):
        copies = rollout.start(parts.env, parts.agent, key, jnp.arange(4))
        data = rollout.unroll(parts.env, parts.agent, parts.agent.actor(state), copies, length)[1]
        return update.learn(parts.agent, state, update.as_batch(data), key)[0]

    enough = 8 if name == "ppo" else 2  # four minibatches of four copies
    jax.eval_shape(lambda s, k: learn(s, k, enough), state, jax.random.key(0))
    with pytest.raises(UserError, match="too few to standardise advantages"):
        jax.eval_shape(lambda s, k: learn(s, k, enough // 2), state, jax.random.key(0))
