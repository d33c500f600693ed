"""TD3 and DDPG against NumPy: both losses, delay, targets, noise, action bounds."""

from __future__ import annotations

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.agents import ddpg, td3
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.networks.torso import NetworkConfig
from jaxrl_hpc.ops import noise
from jaxrl_hpc.schema import traced_values
from jaxrl_hpc.types import Agent, EnvSpec, LearnerState
from tests.agents.numpy_check import as_float64, assert_gradient, dense, mlp, n_step, windows
from tests.tiers import quick

LOW, HIGH = np.array([-2.0, 0.5], np.float32), np.array([1.0, 4.5], np.float32)
SPEC = EnvSpec("made up", (3,), np.dtype(np.float32), None, (2,), LOW, HIGH, 10)
SMALL = NetworkConfig(hidden=(8, 6))


@lru_cache  # frozen configs are hashable
def start(config: td3.TD3Options) -> tuple[Agent, LearnerState]:
    """An agent whose targets differ from its networks."""
    agent = td3.make(config, SPEC, num_envs=4)
    hypers = {k: jnp.float32(v) for k, v in traced_values(config).items()}
    state, other = (jax.jit(agent.init)(jax.random.key(seed), hypers) for seed in (0, 1))
    # a head that starts near zero would make every policy gradient check pass
    louder = jax.tree.map(lambda x: 3.0 * x, state.params["policy"])
    return agent, state._replace(params=state.params | {"policy": louder}, target=other.params)


def policy(params: dict, obs: np.ndarray) -> np.ndarray:
    own = params["params"]
    return np.tanh(dense(own["Dense_0"], mlp(own["torso"], obs)))


def critics(params: dict, obs: np.ndarray, unit: np.ndarray) -> np.ndarray:
    x = np.concatenate([obs, unit], axis=-1)
    own = params["params"]
    return np.stack(
        [
            dense(own[f"Critic_{i}"]["Dense_0"], mlp(own[f"Critic_{i}"]["MLP_0"], x))[:, 0]
            for i in range(len(own))
        ]
    )


@pytest.mark.parametrize("steps", quick([1, 3], [3]))
@pytest.mark.parametrize(
    "make_config", [lambda **k: td3.Config(policy_delay=1, **k), ddpg.Config], ids=["td3", "ddpg"]
)
def test_gradients_and_priority(make_config, steps: int) -> None:
    config = make_config(network=SMALL, n_step=steps, gamma=0.9)
    agent, state = start(config)
    batch = windows(steps, 16, 3, (2,))
    key = jax.random.key(5)
    grads, info = jax.jit(agent.gradient)(state, batch, key)

    data, weight = as_float64(batch.data), as_float64(batch.weight)
    params, target = as_float64(state.params), as_float64(state.target)
    rewards, discounts, finals = n_step(batch, 0.9)
    next_obs = data.next_obs[finals, np.arange(16)]
    draws = np.asarray(jax.random.normal(key, (16, 2)), np.float64) * config.smoothing
    smoothed = policy(target["policy"], next_obs) + np.clip(
        draws, -config.smoothing_clip, config.smoothing_clip
    )
    values = critics(target["critic"], next_obs, np.clip(smoothed, -1, 1))
    assert values.shape[0] == (2 if isinstance(config, td3.Config) else 1)
    goal = rewards + discounts * values.min(axis=0)
    unit = (data.action[0] - (LOW + HIGH) / 2) / ((HIGH - LOW) / 2)

    def critic_loss(critic: dict) -> float:
        return float(np.mean(weight * 0.5 * ((goal - critics(critic, data.obs[0], unit)) ** 2).sum(axis=0)))

    def policy_loss(actor: dict) -> float:
        return float(-critics(params["critic"], data.obs[0], policy(actor, data.obs[0]))[0].mean())

    assert_gradient(critic_loss, state.params["critic"], grads["params"]["critic"])
    assert_gradient(policy_loss, state.params["policy"], grads["params"]["policy"])
    error = goal - critics(params["critic"], data.obs[0], unit)
    np.testing.assert_allclose(info.priority, np.abs(error).mean(axis=0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("progress", "alpha"), [(0.2, 2.5), (0.2, 0.0), (0.6, 2.5)])
def test_behaviour_cloning(progress: float, alpha: float) -> None:
    """-lambda Q + (pi - a)^2 with lambda = alpha / mean |Q|; without the imitation once its part is over."""
    config = td3.Config(
        network=SMALL, policy_delay=1, behaviour_cloning=True, bc_alpha=alpha, bc_fraction=0.5
    )
    agent, state = start(config)
    state = state._replace(progress=jnp.float32(progress))
    batch = windows(1, 16, 3, (2,))
    grads, _ = jax.jit(agent.gradient)(state, batch, jax.random.key(5))
    data, params = as_float64(batch.data), as_float64(state.params)
    unit = (data.action[0] - (LOW + HIGH) / 2) / ((HIGH - LOW) / 2)
    size = np.abs(critics(params["critic"], data.obs[0], policy(params["policy"], data.obs[0]))[0]).mean()

    def policy_loss(actor: dict) -> float:
        chosen = policy(actor, data.obs[0])
        values = critics(params["critic"], data.obs[0], chosen)[0]
        imitation = ((chosen - unit) ** 2).mean() if progress < 0.5 else 0.0
        return float(imitation - alpha / size * values.mean())

    assert_gradient(policy_loss, state.params["policy"], grads["params"]["policy"])


def test_policy_and_targets_wait_for_the_delay() -> None:
    agent, state = start(td3.Config(network=SMALL, policy_delay=3, target_rate=0.25))
    batch = windows(1, 16, 3, (2,))

    def moved(a, b) -> bool:
        return any(jax.tree.leaves(jax.tree.map(lambda x, y: bool((x != y).any()), a, b)))

    for update in range(1, 7):
        grads, _ = jax.jit(agent.gradient)(state, batch, jax.random.key(update))
        new = jax.jit(agent.apply)(state, grads)
        due = update % 3 == 0
        assert moved(new.params["critic"], state.params["critic"])
        assert moved(new.params["policy"], state.params["policy"]) == due
        assert moved(new.opt["policy"], state.opt["policy"]) == due
        assert moved(new.target, state.target) == due
        if due:
            expected = jax.tree.map(lambda t, p: 0.75 * t + 0.25 * p, state.target, new.params)
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), new.target, expected
            )
        state = new


@pytest.mark.parametrize("kind", ["gaussian", "ou"])
def test_actions_stay_in_the_true_bounds_and_reach_them(kind) -> None:
    agent, state = start(td3.Config(network=SMALL, noise=kind, noise_scale=3.0))
    params, carry = agent.actor(state), agent.carry(jnp.arange(500))
    obs = jax.random.normal(jax.random.key(0), (500, 3))
    action, _, _ = jax.jit(agent.act, static_argnums=4)(
        params, carry, obs, jax.random.split(jax.random.key(1), 500), False
    )
    assert action.shape == (500, 2)
    assert (action >= LOW).all() and (action <= HIGH).all()
    np.testing.assert_allclose(action.min(axis=0), LOW, atol=1e-5)
    np.testing.assert_allclose(action.max(axis=0), HIGH, atol=1e-5)


def test_run_begins_with_uniform_actions() -> None:
    agent, state = start(td3.Config(network=SMALL, noise_scale=0.0, random_fraction=0.1))
    obs, keys = jnp.zeros((4000, 3)), jax.random.split(jax.random.key(1), 4000)
    begin, _, _ = jax.jit(agent.act, static_argnums=4)(agent.actor(state), (), obs, keys, False)
    later, _, _ = jax.jit(agent.act, static_argnums=4)(
        agent.actor(state._replace(progress=jnp.float32(0.2))), (), obs, keys, False
    )
    greedy, _, _ = jax.jit(agent.act, static_argnums=4)(agent.actor(state), (), obs, keys, True)
    np.testing.assert_allclose(begin.mean(axis=0), (LOW + HIGH) / 2, atol=0.1)
    np.testing.assert_allclose(begin.std(axis=0), (HIGH - LOW) / np.sqrt(12), rtol=0.05)
    np.testing.assert_array_equal(later, greedy)


def test_ou_noise_has_its_stationary_moments() -> None:
    theta, sigma, copies = 0.15, 0.2, 2000

    def step(state, key):
        state = noise.ornstein_uhlenbeck(
            state, noise.gaussian(jax.random.split(key, copies), 1), theta, sigma
        )
        return state, state

    _, path = jax.lax.scan(step, jnp.zeros((copies, 1)), jax.random.split(jax.random.key(0), 120))
    late = np.asarray(path[80:, :, 0])
    np.testing.assert_allclose(late.std(), sigma / np.sqrt(2 * theta - theta**2), rtol=0.03)
    lag_one = (late[1:] * late[:-1]).mean() / (late**2).mean()
    np.testing.assert_allclose(lag_one, 1 - theta, atol=0.02)


def test_ou_state_is_carried_and_starts_at_zero() -> None:
    agent, state = start(td3.Config(network=SMALL, noise="ou"))
    carry = agent.carry(jnp.arange(4))
    np.testing.assert_array_equal(carry["noise"], np.zeros((4, 2)))
    keys = jax.random.split(jax.random.key(0), 4)
    _, after, _ = jax.jit(agent.act, static_argnums=4)(
        agent.actor(state), carry, jnp.zeros((4, 3)), keys, False
    )
    assert (after["noise"] != 0).all()


def test_unit_actions_come_back() -> None:
    scale = noise.action_scale(SPEC)
    unit = jnp.array([[-1.0, 1.0], [0.0, 0.5]])
    np.testing.assert_allclose(scale.to_env(unit), [[-2.0, 4.5], [-0.5, 3.5]])
    np.testing.assert_allclose(scale.to_unit(scale.to_env(unit)), unit, atol=1e-6)


def test_unfit_spaces_are_refused() -> None:
    with pytest.raises(UserError, match="continuous actions"):
        td3.make(td3.Config(), SPEC._replace(num_actions=2, action_shape=()), num_envs=1)
    endless = SPEC._replace(action_high=np.array([np.inf, 1.0], np.float32))
    with pytest.raises(UserError, match="finite bounds"):
        td3.make(td3.Config(), endless, num_envs=1)
