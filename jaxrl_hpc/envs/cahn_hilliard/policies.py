"""Reference policies that an agent has to beat: constant temperatures, and ramps.

A rule is a target temperature for every action, approached as quickly as the environment allows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.envs.cahn_hilliard.environment import CHANGE, COLDEST, HOTTEST, CahnHilliard
from jaxrl_hpc.envs.cahn_hilliard.target import LAST
from jaxrl_hpc.types import Array, PyTree


def constant(temperature: float, horizon: int) -> np.ndarray:
    """Go to a temperature and stay, [horizon]."""
    return np.full(horizon, temperature, np.float32)


def ramp(horizon: int, end: float) -> np.ndarray:
    """A linear ramp down from 1, [horizon]."""
    return np.linspace(HOTTEST, end, horizon, dtype=np.float32)


def rules(horizon: int) -> dict[str, np.ndarray]:
    """Names and schedules of all reference policies."""
    constants = {f"constant {t:.1f}": constant(t, horizon) for t in np.arange(1, 11) / 10}
    ramps = {f"ramp to {end:.1f}": ramp(horizon, end) for end in (LAST, COLDEST)}
    return {**constants, **ramps}


def follow(env: CahnHilliard, wanted: np.ndarray, keys: Array) -> np.ndarray:
    """Returns of episodes [E] from start states by keys [E], as in an evaluation."""
    params = env.default_params

    @jax.jit
    def episode(key: Array, wanted: Array) -> Array:
        _, state = env.reset_env(key, params)

        def one(state: Any, target: Array) -> tuple[Any, Array]:
            away = (target - state.temperature) / CHANGE
            action = 1 + jnp.sign(jnp.round(away)).astype(jnp.int32)
            _, state, reward, _, _ = env.step_env(key, state, action, params)
            return state, reward

        return jax.lax.scan(one, state, wanted)[1].sum()

    return np.array([episode(key, jnp.asarray(wanted)) for key in keys])


class AnnealingEpisode(NamedTuple):
    """A recorded episode, for pictures."""

    temperature: np.ndarray  # [T + 1]
    structure: np.ndarray  # [T + 1, 200], divided by the target's maximum
    reward: np.ndarray  # [T]
    fields: list[np.ndarray]  # some moments, [n, n]
    moments: list[int]


def record(env: CahnHilliard, act: Callable[..., Any], carry: PyTree, key: Array) -> AnnealingEpisode:
    """One episode of act(carry, obs, key) -> (action, carry)."""
    params = env.default_params
    start_key, key = jax.random.split(key)
    obs, state = env.reset_env(start_key, params)
    step = jax.jit(env.step_env)
    horizon = params.max_steps_in_episode
    moments = sorted({round(x) for x in np.linspace(0, horizon, 5)})
    seen, rewards, fields = [np.asarray(obs)], [], [np.asarray(state.field)]
    for time in range(1, horizon + 1):
        key, act_key = jax.random.split(key)
        action, carry = act(carry, obs, act_key)
        obs, state, reward, _, _ = step(key, state, action, params)
        seen.append(np.asarray(obs))
        rewards.append(float(reward))
        if time in moments:
            fields.append(np.asarray(state.field))
    rows = np.stack(seen)
    return AnnealingEpisode(rows[:, 0], rows[:, 1:], np.array(rewards), fields, moments)
