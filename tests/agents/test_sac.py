"""SAC against NumPy: all three losses, each option, exploration, action bounds."""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import ValidationError

from jaxrl_hpc.agents import sac
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.networks.critic import MOMENTUM, Critics
from jaxrl_hpc.networks.torso import NetworkConfig
from jaxrl_hpc.schema import traced_values
from jaxrl_hpc.types import Agent, EnvSpec, LearnerState
from tests.agents.numpy_check import as_float64, assert_gradient, dense, mlp, n_step, windows
from tests.tiers import quick

LOW, HIGH = np.array([-2.0, 0.5], np.float32), np.array([1.0, 4.5], np.float32)
SPEC = EnvSpec("made up", (3,), np.dtype(np.float32), None, (2,), LOW, HIGH, 10)
SMALL = NetworkConfig(hidden=(8, 6))
LAYERED = NetworkConfig(hidden=(8, 6), layer_norm=True)
COUNT = 16


@lru_cache  # frozen configs are hashable
def start(config: sac.Config) -> tuple[Agent, LearnerState]:
    """An agent whose targets differ from its networks, with a policy that depends on what it sees, and with
    moments of batch norm that are not those of the start."""
    agent = sac.make(config, SPEC, num_envs=4)
    hypers = {k: jnp.float32(v) for k, v in traced_values(config).items()}
    state, other = (jax.jit(agent.init)(jax.random.key(seed), hypers) for seed in (0, 1))
    own = state.params["policy"]["params"]
    head = {  # it starts near zero
        name: {"kernel": 20.0 * part["kernel"], "bias": part["bias"] + 0.02}
        for name, part in own["PolicyHead_0"].items()
    }
    louder = {"params": {"PolicyHead_0": head, "torso": jax.tree.map(lambda x: x + 0.02, own["torso"])}}
    moved = jax.tree.map(lambda x: 1.1 * x + 0.02, state.params["critic"])  # off the kinks of activations
    params = state.params | {"policy": louder, "critic": moved}
    moments = jax.tree.map(lambda x: x + 0.3, state.aux)
    return agent, state._replace(params=params, target=other.target, aux=moments)


def policy(params: dict, obs: np.ndarray, normal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Actions in [-1, 1] and log-probabilities, by the change of variables as it is written in books."""
    own = params["params"]
    features, head = mlp(own["torso"], obs), own["PolicyHead_0"]
    mean, log_std = (
        features @ head[f"Readout_{i}"]["kernel"].T + head[f"Readout_{i}"]["bias"] for i in (0, 1)
    )
    raw = mean + np.exp(log_std) * normal
    density = -0.5 * normal**2 - log_std - 0.5 * np.log(2 * np.pi)
    return np.tanh(raw), (density - np.log(1 - np.tanh(raw) ** 2)).sum(axis=-1)


def normed(params: dict, x: np.ndarray, mean: Any, variance: Any) -> np.ndarray:
    return (x - mean) / np.sqrt(variance + 1e-5) * params["scale"] + params["bias"]


def layer_norm_mlp(params: dict, x: np.ndarray) -> np.ndarray:
    for i in range(len(params) // 2):
        x = dense(params[f"Dense_{i}"], x)
        norm = params[f"LayerNorm_{i}"]
        mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
        x = np.maximum((x - mean) / np.sqrt(variance + 1e-6) * norm["scale"] + norm["bias"], 0)
    return x


def batch_norm_mlp(params: dict, moments: dict | None, x: np.ndarray, seen: list) -> np.ndarray:
    """By given moments, or by those of the batch, which are then added to `seen`."""
    for i in range(len(params) // 2 + 1):
        if i:
            x = np.maximum(dense(params[f"Dense_{i - 1}"], x), 0)
        if moments is None:
            mean, variance = x.mean(axis=0), x.var(axis=0)
            seen.append((mean, variance))
        else:
            mean, variance = (moments[f"BatchNorm_{i}"][name] for name in ("mean", "var"))
        x = normed(params[f"BatchNorm_{i}"], x, mean, variance)
    return x


def critics(params: dict, obs: np.ndarray, unit: np.ndarray, moments: Any = None, seen: Any = None) -> Any:
    x = np.concatenate([obs, unit], axis=-1)
    values = []
    for i in range(len(params["params"])):
        own = params["params"][f"Critic_{i}"]
        if "BatchNormMLP_0" in own:
            known = None if moments is None else moments[f"Critic_{i}"]["BatchNormMLP_0"]
            features = batch_norm_mlp(own["BatchNormMLP_0"], known, x, [] if seen is None else seen)
        elif "LayerNorm_0" in own["MLP_0"]:
            features = layer_norm_mlp(own["MLP_0"], x)
        else:
            features = mlp(own["MLP_0"], x)
        values.append(dense(own["Dense_0"], features)[:, 0])
    return np.stack(values)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "three steps": {"n_step": 3},
    "fixed temperature": {"learn_temperature": False, "temperature": 0.3},
    "redq": {"critics": 5, "target_subset": 2, "policy_value": "mean"},
    "layer norm": {"critic_network": LAYERED},
    "crossq": {"batch_norm": True, "n_step": 3},
}


@pytest.mark.parametrize("name", quick(OPTIONS, ["crossq"]))
def test_gradients_and_priority(name: str) -> None:
    config = sac.Config(**({"network": SMALL, "gamma": 0.9, "temperature": 0.4} | OPTIONS[name]))
    agent, state = start(config)
    batch, key = windows(config.n_step, COUNT, 3, (2,)), jax.random.key(5)
    grads, info = jax.jit(agent.gradient)(state, batch, key)

    data, weight = as_float64(batch.data), as_float64(batch.weight)
    params, target, moments = as_float64(state.params), as_float64(state.target), as_float64(state.aux)
    keys = jax.random.split(key, 6)
    next_normal, normal = (np.asarray(jax.random.normal(keys[i], (COUNT, 2)), np.float64) for i in (0, 4))
    alpha = config.temperature
    rewards, discounts, finals = n_step(batch, 0.9)
    obs, next_obs = data.obs[0], data.next_obs[finals, np.arange(COUNT)]
    unit = (data.action[0] - (LOW + HIGH) / 2) / ((HIGH - LOW) / 2)
    next_unit, next_log_prob = policy(params["policy"], next_obs, next_normal)
    chosen = np.arange(config.critics)
    if config.target_subset:
        chosen = np.asarray(jax.random.permutation(keys[1], config.critics))[: config.target_subset]
    seen: list = []
    if config.batch_norm:
        both = (np.concatenate([obs, next_obs]), np.concatenate([unit, next_unit]))
        next_values = critics(params["critic"], *both, None, seen)[:, COUNT:]
    else:
        next_values = critics(target, next_obs, next_unit)
    goal = rewards + discounts * (next_values[chosen].min(axis=0) - alpha * next_log_prob)

    def error(critic: dict) -> np.ndarray:
        if config.batch_norm:
            return goal - critics(critic, *both)[:, :COUNT]
        return goal - critics(critic, obs, unit)

    def policy_loss(actor: dict) -> float:
        action, log_prob = policy(actor, obs, normal)
        values = critics(params["critic"], obs, action, moments if config.batch_norm else None)
        value = values.min(axis=0) if config.policy_value == "min" else values.mean(axis=0)
        return float(np.mean(alpha * log_prob - value))

    found = grads["params"]
    assert_gradient(
        lambda critic: float(np.mean(weight * 0.5 * (error(critic) ** 2).sum(axis=0))),
        state.params["critic"],
        found["critic"],
    )
    assert_gradient(policy_loss, state.params["policy"], found["policy"])
    np.testing.assert_allclose(
        info.priority, np.abs(error(params["critic"])).mean(axis=0), rtol=1e-4, atol=1e-5
    )
    if config.learn_temperature:
        entropy = -policy(params["policy"], obs, normal)[1].mean()
        np.testing.assert_allclose(found["temperature"], entropy - 2 * config.target_entropy, rtol=1e-4)
    if config.batch_norm:  # running moments go a hundredth of the way to those of the batch
        new = jax.jit(agent.apply)(state, grads, info.statistics).aux
        layers = [new[f"Critic_{i}"]["BatchNormMLP_0"][f"BatchNorm_{j}"] for i in (0, 1) for j in (0, 1, 2)]
        old = [moments[f"Critic_{i}"]["BatchNormMLP_0"][f"BatchNorm_{j}"] for i in (0, 1) for j in (0, 1, 2)]
        assert len(layers) == len(seen)
        for layer, before, (mean, variance) in zip(layers, old, seen, strict=True):
            np.testing.assert_allclose(
                layer["mean"], MOMENTUM * before["mean"] + (1 - MOMENTUM) * mean, rtol=1e-4, atol=1e-5
            )
            np.testing.assert_allclose(
                layer["var"], MOMENTUM * before["var"] + (1 - MOMENTUM) * variance, rtol=1e-4, atol=1e-5
            )


def test_running_moments_follow_the_mean_of_shards() -> None:
    agent, state = start(sac.Config(network=SMALL, batch_norm=True))
    gradient = jax.jit(agent.gradient)
    grads, first = gradient(state, windows(1, COUNT, 3, (2,), seed=1), jax.random.key(0))
    _, second = gradient(state, windows(1, COUNT, 3, (2,), seed=2), jax.random.key(1))
    total = jax.tree.map(jnp.add, first.statistics, second.statistics)
    apply = jax.jit(agent.apply)
    alone = [apply(state, grads, info.statistics).aux for info in (first, second)]
    together = apply(state, grads, total)
    assert together.target == ()
    jax.tree.map(lambda a, b, c: np.testing.assert_allclose(a, (b + c) / 2, rtol=1e-5), together.aux, *alone)


def test_dropout_leaves_units_out_and_scales_up_the_others() -> None:
    """Every value is that of one of the eight networks that are left of three units."""
    network = Critics(NetworkConfig(hidden=(3,)), SPEC, 1, dropout=0.4)
    obs, unit = jax.random.normal(jax.random.key(0), (400, 3)), jnp.ones((400, 2))
    params = network.init(jax.random.key(1), obs, unit)
    params = jax.tree.map(lambda x: x + 0.1, params)
    found = np.asarray(network.apply(params, obs, unit, rngs={"dropout": jax.random.key(2)}))[0]
    own = as_float64(params)["params"]["Critic_0"]
    before = dense(own["MLP_0"]["Dense_0"], np.concatenate([obs, unit], axis=-1))
    masks = np.array(list(itertools.product([0.0, 1.0], repeat=3)))

    def values_of(hidden: np.ndarray) -> np.ndarray:
        return dense(own["Dense_0"], np.maximum(hidden, 0))[:, 0]

    values = np.stack([values_of(before * mask / 0.6) for mask in masks], axis=1)
    distance = np.abs(values - found[:, None])
    assert distance.min(axis=1).max() < 1e-4
    left_in = masks[distance.argmin(axis=1)][(before > 0.1).all(axis=1)]
    assert abs(left_in.mean() - 0.6) < 0.1
    without = np.asarray(network.apply(params, obs, unit))[0]
    np.testing.assert_allclose(without, values_of(before), rtol=1e-4, atol=1e-5)


def test_policy_and_temperature_wait_for_the_delay() -> None:
    agent, state = start(sac.Config(network=SMALL, policy_delay=3, target_rate=0.25, dropout=0.1))
    batch = windows(1, COUNT, 3, (2,))

    def moved(a: Any, b: Any) -> bool:
        return any(jax.tree.leaves(jax.tree.map(lambda x, y: bool((x != y).any()), a, b)))

    gradient, apply = jax.jit(agent.gradient), jax.jit(agent.apply)
    for update in range(1, 7):
        grads, _ = gradient(state, batch, jax.random.key(update))
        new = apply(state, grads)
        assert moved(new.params["critic"], state.params["critic"])
        for name in ("policy", "temperature"):
            assert moved(new.params[name], state.params[name]) == (update % 3 == 0)
            assert moved(new.opt[name], state.opt[name]) == (update % 3 == 0)
        expected = jax.tree.map(lambda t, p: 0.75 * t + 0.25 * p, state.target, new.params["critic"])
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), new.target, expected
        )
        state = new


def test_temperature_holds_the_entropy_at_its_target() -> None:
    """It rises while the policy has less entropy than wanted, and falls while it has more."""
    for target, sign in ((0.6, 1), (-5.0, -1)):
        agent, state = start(sac.Config(network=SMALL, target_entropy=target, log_std=-1.0))
        grads, info = jax.jit(agent.gradient)(state, windows(1, COUNT, 3, (2,)), jax.random.key(0))
        new = jax.jit(agent.apply)(state, grads)
        assert sign * float(new.params["temperature"] - state.params["temperature"]) > 0
        assert info.metrics["temperature"] == 1.0


def explored(memory: float, steps: int = 30, copies: int = 2000) -> np.ndarray:
    """Actions [steps, copies, A] in a state that stays the same."""
    agent, state = start(sac.Config(network=SMALL, noise_memory=memory))
    params, obs = agent.actor(state), jnp.ones((copies, 3))

    def step(carry: Any, key: Any) -> Any:
        action, carry, _ = agent.act(params, carry, obs, jax.random.split(key, copies), False)
        return carry, action

    keys = jax.random.split(jax.random.key(0), steps)
    return np.asarray(jax.jit(lambda c: jax.lax.scan(step, c, keys)[1])(agent.carry(jnp.arange(copies))))


def test_remembered_noise_changes_nothing_but_the_correlation() -> None:
    plain, lasting = explored(0.0), explored(0.9)

    def correlation(path: np.ndarray) -> np.ndarray:
        path = path - path.mean(axis=(0, 1))
        return (path[1:] * path[:-1]).mean(axis=(0, 1)) / (path**2).mean(axis=(0, 1))

    assert (np.abs(correlation(plain)) < 0.03).all()
    assert (correlation(lasting) > 0.8).all()
    for step in (0, 1, 29):  # from the first step on
        np.testing.assert_allclose(lasting[step].mean(axis=0), plain.mean(axis=(0, 1)), atol=0.12)
        np.testing.assert_allclose(lasting[step].std(axis=0), plain.std(axis=(0, 1)), rtol=0.06)


def test_actions_stay_in_the_true_bounds_and_reach_them() -> None:
    agent, state = start(sac.Config(network=SMALL, log_std=2.0))
    obs = jax.random.normal(jax.random.key(0), (500, 3))
    keys = jax.random.split(jax.random.key(1), 500)
    action, _, _ = jax.jit(agent.act, static_argnums=4)(
        agent.actor(state), agent.carry(jnp.arange(500)), obs, keys, False
    )
    assert action.shape == (500, 2) and (action >= LOW).all() and (action <= HIGH).all()
    np.testing.assert_allclose(action.min(axis=0), LOW, atol=1e-3)
    np.testing.assert_allclose(action.max(axis=0), HIGH, atol=1e-3)


def test_run_begins_with_uniform_actions() -> None:
    agent, state = start(sac.Config(network=SMALL, random_fraction=0.1, log_std=-5.0))
    obs, keys = jnp.zeros((4000, 3)), jax.random.split(jax.random.key(1), 4000)
    act, carry = jax.jit(agent.act, static_argnums=4), agent.carry(jnp.arange(4000))
    begin, _, _ = act(agent.actor(state), carry, obs, keys, False)
    np.testing.assert_allclose(begin.mean(axis=0), (LOW + HIGH) / 2, atol=0.1)
    np.testing.assert_allclose(begin.std(axis=0), (HIGH - LOW) / np.sqrt(12), rtol=0.05)
    later, _, _ = act(agent.actor(state._replace(progress=jnp.float32(0.2))), carry, obs, keys, False)
    assert (later.std(axis=0) < 0.1).all()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UserError, match="continuous actions"):
        sac.make(sac.Config(), SPEC._replace(num_actions=2, action_shape=()), num_envs=1)
    with pytest.raises(UserError, match="finite bounds"):
        endless = SPEC._replace(action_high=np.array([np.inf, 1.0], np.float32))
        sac.make(sac.Config(), endless, num_envs=1)
    with pytest.raises(ValidationError, match="target_subset is 3: there are 2 critics"):
        sac.Config(target_subset=3)
    with pytest.raises(ValidationError, match="batch_norm: leave out dropout"):
        sac.Config(batch_norm=True, dropout=0.1)
