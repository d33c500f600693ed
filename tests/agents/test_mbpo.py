"""MBPO: the agent inside stays as it is, simulated steps are the ensemble's, only trusted ones count."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc import config as configs
from jaxrl_hpc.agents import mbpo, mbpo_td3, sac, td3, world
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.networks.torso import NetworkConfig
from jaxrl_hpc.networks.world_model import Prediction
from jaxrl_hpc.schema import traced_values
from jaxrl_hpc.types import EnvSpec
from jaxrl_hpc.workflows import update as learning
from tests.agents.numpy_check import windows
from tests.tiers import quick

TWO = 2 * np.ones(2, np.float32)
SPEC = EnvSpec("made up", (3,), np.dtype(np.float32), None, (2,), -TWO, TWO, 10)
SMALL = NetworkConfig(hidden=(8,))
PLAN = {"planning_updates": 4, "rollout_length": 2, "ensemble": 3, "model_hidden": (8,), "batch_size": 8}
MAKERS = {
    "mbpo": (mbpo.make, mbpo.Config, sac.make, sac.Config, {"policy_delay": 2}),
    "mbpo_td3": (mbpo_td3.make, mbpo_td3.Config, td3.make, td3.Config, {}),
}


def started(name: str, **settings):
    make, config_class, inner_make, inner_class, more = MAKERS[name]
    config = config_class(network=SMALL, **PLAN, **more, **settings)
    inner = inner_make(inner_class(network=SMALL, batch_size=8, **more), SPEC, num_envs=2)
    agent = make(config, SPEC, num_envs=2)
    hypers = {k: jnp.float32(v) for k, v in traced_values(config).items()}
    return agent, inner, jax.jit(agent.init)(jax.random.key(0), hypers)


def trusting(state, error: float = 0.0):
    """A state whose model is trusted (or not), and whose world has a scale."""
    known = state.aux["world"]
    ones = lambda stats: stats._replace(number=jnp.float32(2), m2=jnp.full_like(stats.m2, 2.0))  # noqa: E731
    known = known._replace(state=ones(known.state), change=ones(known.change), reward=ones(known.reward))
    return state._replace(aux=state.aux | {"world": known._replace(error=jnp.float32(error))})


def assert_same(a, b) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("name", quick(MAKERS, ["mbpo"]))
def test_an_untrusted_model_leaves_the_agent_as_it_is_without_one(name: str) -> None:
    """Five updates, of which only the last, real one counts."""
    agent, inner, state = started(name)
    state = trusting(state, error=9.0)._replace(step=jnp.int32(5))
    batch, key = windows(1, 8, 3, (2,)), jax.random.key(3)
    new, metrics, _ = jax.jit(lambda s: learning.learn(agent, s, batch, key))(state)
    assert float(metrics["simulated_used"]) == 0.0
    own = lambda s: s._replace(  # noqa: E731
        params={n: p for n, p in s.params.items() if n != "model"},
        opt={n: p for n, p in s.opt.items() if n != "model"},
        aux=s.aux["agent"],
    )
    real_key = jax.random.split(jax.random.split(key)[1], 5)[-1]
    alone = own(state)._replace(step=jnp.int32(9))
    grads, _ = jax.jit(inner.gradient)(alone, batch, real_key)
    expected = jax.jit(inner.apply)(alone, grads)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7),
        (own(new).params, own(new).target),
        (expected.params, expected.target),
    )
    assert int(new.step) == 10
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), new.params["model"], state.params["model"])
    assert all(jax.tree.leaves(moved))


@pytest.mark.parametrize("name", quick(MAKERS, ["mbpo_td3"]))
def test_simulated_batches_are_the_ensembles(name: str) -> None:
    """Every simulated step starts in a real state or where another ended, and one member explains it."""
    agent, _, state = started(name, max_disagreement=1e6)
    state = trusting(state)
    real = windows(1, 8, 3, (2,))
    found = jax.jit(agent.minibatches)(state, real, jax.random.key(1))
    assert found.data.reward.shape == (5, 1, 8) and found.weight.shape == (5, 8)
    assert_same(jax.tree.map(lambda x: x[-1], found.data._replace(extras=())), real.data._replace(extras=()))
    np.testing.assert_array_equal(found.weight[-1], real.weight)
    np.testing.assert_array_equal(found.weight[:-1], 1.0)
    simulated = jax.tree.map(lambda x: np.asarray(x[:-1]).reshape(32, *x.shape[3:]), found.data)
    starts = {tuple(row) for row in np.asarray(real.data.obs[0])}
    deeper = [row for row in simulated.obs if tuple(row) not in starts]
    assert len(deeper) > 0
    reached = simulated.next_obs
    assert all((np.abs(reached - row).max(axis=1) < 1e-6).any() for row in deeper)
    model = mbpo.WorldModel(3, (8,), 3)
    known = state.aux["world"]
    by_all = world.predict(model, state.params["model"], known, simulated.obs, simulated.action / 2)
    change = np.asarray(
        by_all.change
    )  # a spread of one: standardised is plain, but for what keeps it from zero
    wanted = (simulated.next_obs - simulated.obs) / 1.001
    off = np.abs(change - wanted).max(axis=-1)  # [members, N]
    assert off.min(axis=0).max() < 1e-3
    chosen = off.argmin(axis=0)
    assert set(chosen) == {0, 1, 2}
    reward = np.asarray(by_all.reward)[chosen, np.arange(32)] * 1.001
    np.testing.assert_allclose(simulated.reward, reward, rtol=1e-3, atol=1e-4)


def test_steps_that_members_disagree_on_do_not_count() -> None:
    agent, _, state = started("mbpo", max_disagreement=1e-9)
    found = jax.jit(agent.minibatches)(trusting(state), windows(1, 8, 3, (2,)), jax.random.key(1))
    np.testing.assert_array_equal(found.weight[:-1], 0.0)
    starts = {tuple(row) for row in np.asarray(found.data.obs[-1, 0])}
    assert {tuple(row) for row in np.asarray(found.data.obs[:-1]).reshape(32, 3)} <= starts  # begin again


def test_disagreement_is_the_spread_of_members() -> None:
    rng = np.random.default_rng(0)
    change, reward = rng.standard_normal((4, 6, 3)), rng.standard_normal((4, 6))
    found = Prediction(jnp.asarray(change), jnp.asarray(reward), jnp.zeros((4, 6)))
    expected = [
        np.sqrt((sum(change[:, i, d].var() for d in range(3)) + reward[:, i].var()) / 4) for i in range(6)
    ]
    np.testing.assert_allclose(world.disagreement(found), expected, rtol=1e-5)


def test_settings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match="planning_updates is 4: it must be a multiple of rollout_length = 3"):
        configs.from_dict({"agent": {"name": "mbpo", "rollout_length": 3}, "env": {"name": "Pendulum-v1"}})
    with pytest.raises(UserError, match=r"agent.n_step: should be less than or equal to 1"):
        configs.from_dict({"agent": {"name": "mbpo", "n_step": 2}, "env": {"name": "Pendulum-v1"}})
    for name, (make, config, *_) in MAKERS.items():
        with pytest.raises(UserError, match=f"agent '{name}' needs continuous actions"):
            make(config(), SPEC._replace(num_actions=2), num_envs=1)
        with pytest.raises(UserError, match=f"agent '{name}' needs vector observations"):
            make(config(), SPEC._replace(obs_shape=(4, 4)), num_envs=1)
