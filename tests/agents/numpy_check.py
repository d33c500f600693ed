"""Independent float64 NumPy pieces that agents are checked against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.types import Batch, Transition


def as_float64(tree: Any) -> Any:
    return jax.tree.map(lambda x: np.asarray(x, np.float64), jax.device_get(tree))


def dense(params: dict[str, Any], x: np.ndarray) -> np.ndarray:
    return x @ params["kernel"] + params["bias"]


def mlp(params: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """Dense_0, Dense_1, … each followed by a rectifier."""
    for i in range(len(params)):
        x = np.maximum(dense(params[f"Dense_{i}"], x), 0.0)
    return x


def q_network(params: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """Plain or dueling action values, the latter with or without hidden layers in the streams."""
    own = params.get("params", params)
    x = mlp(own["torso"], x)
    advantage = dense(own["Dense_0"], mlp(own.get("MLP_0", {}), x))
    if "Dense_1" not in own:
        return advantage
    value = dense(own["Dense_1"], mlp(own.get("MLP_1", {}), x))
    return value + advantage - advantage.mean(axis=-1, keepdims=True)


def huber(error: np.ndarray, delta: float) -> np.ndarray:
    return np.where(np.abs(error) <= delta, 0.5 * error**2, delta * (np.abs(error) - 0.5 * delta))


def n_step(batch: Batch, gamma: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reward, discount and last step of every window, one window at a time."""
    data = jax.device_get(batch.data)
    steps, count = data.reward.shape
    rewards, discounts, finals = np.zeros(count), np.zeros(count), np.zeros(count, int)
    for j in range(count):
        factor = 1.0
        for i in range(steps):
            rewards[j] += factor * data.reward[i, j]
            factor *= gamma * data.discount[i, j]
            finals[j] = i
            if data.last[i, j]:
                break
        discounts[j] = factor
    return rewards, discounts, finals


def assert_gradient(loss: Callable[[Any], float], params: Any, grads: Any, directions: int = 6) -> None:
    """grads is the gradient of the NumPy function `loss` at params: central differences agree."""
    params, grads = as_float64(params), as_float64(grads)
    random = np.random.default_rng(0)
    slopes, step = [], 1e-6
    for _ in range(directions):
        way = jax.tree.map(lambda x: random.normal(size=x.shape), params)
        ahead = loss(jax.tree.map(lambda p, d: p + step * d, params, way))
        behind = loss(jax.tree.map(lambda p, d: p - step * d, params, way))
        expected = (ahead - behind) / (2 * step)
        found = sum(float((g * d).sum()) for g, d in zip(*map(jax.tree.leaves, (grads, way)), strict=True))
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-5)
        slopes.append(abs(expected))
    assert max(slopes) > 1e-4, "a flat loss checks nothing"


def windows(steps: int, count: int, obs: int, actions: int | tuple[int, ...], seed: int = 0) -> Batch:
    """Random windows [steps, count] with terminations and truncations inside, uneven weights."""
    random = np.random.default_rng(seed)
    terminated = random.random((steps, count)) < 0.15
    truncated = (random.random((steps, count)) < 0.15) & ~terminated
    if steps > 1:  # surely one of each, with steps of the next episode after it
        terminated[0, 0], truncated[0, 0] = True, False
        terminated[0, 1], truncated[0, 1] = False, True
    if isinstance(actions, int):
        action = jnp.asarray(random.integers(0, actions, (steps, count)), jnp.int32)
    else:
        action = jnp.asarray(random.uniform(-1, 1, (steps, count, *actions)), jnp.float32)
    data = Transition(
        obs=jnp.asarray(random.normal(size=(steps, count, obs)), jnp.float32),
        action=action,
        reward=jnp.asarray(random.normal(size=(steps, count)), jnp.float32),
        discount=jnp.asarray(1.0 - terminated, jnp.float32),
        last=jnp.asarray(terminated | truncated),
        next_obs=jnp.asarray(random.normal(size=(steps, count, obs)), jnp.float32),
        extras=(),
    )
    weight = jnp.asarray(random.uniform(0.2, 1.0, count), jnp.float32)
    return Batch(data, weight, jnp.arange(count, dtype=jnp.int32))
