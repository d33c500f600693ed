"""Greedy episodes of a gymnax environment, for peers that are programs of JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnax
import jax

EPISODES = 64


class FiveResults:
    """A gymnax 1.x environment as these peers expect it: one flag for the end of an episode."""

    def __init__(self, env: Any):
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # asked for by copy before there is one
            raise AttributeError(name)
        return getattr(self.env, name)

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        obs, state, reward, terminated, truncated, info = self.env.step(key, state, action, params)
        return obs, state, reward, terminated | truncated, info


def five_results(name: str, make: Callable[[str], Any] = gymnax.make) -> tuple[Any, Any]:
    """(environment, its parameters)"""
    env, params = make(name)
    return FiveResults(env), params


def greedy_return(name: str, act: Callable[[Any, Any], Any]) -> float:
    """Mean return of first episodes. `act`: (observation, key) -> action, of one copy."""
    env, params = five_results(name)

    def episode(key: Any) -> Any:
        reset_key, step_key = jax.random.split(key)
        obs, state = env.reset(reset_key, params)

        def step(carry: Any, key: Any) -> Any:
            obs, state, alive, total = carry
            obs, state, reward, done, _ = env.step(key, state, act(obs, key), params)
            return (obs, state, alive * (1 - done), total + alive * reward), None

        keys = jax.random.split(step_key, params.max_steps_in_episode)
        (_, _, _, total), _ = jax.lax.scan(step, (obs, state, 1.0, 0.0), keys)
        return total

    returns = jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(7), EPISODES))
    return float(returns.mean())
