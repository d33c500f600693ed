"""Any gymnax 1.x `Environment` as an `Env`: a vmap over copies, terminated and truncated apart.

gymnax is imported only when an environment is made: its import starts JAX's backend (which
machine.prepare must do) and takes seconds for plotting libraries that nothing here needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field

from jaxrl_hpc.envs import previous_step, render
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.schema import ComponentConfig, static
from jaxrl_hpc.types import Array, Env, EnvSpec, EnvStep, HostHooks, PyTree


class Config(ComponentConfig):
    """An environment of gymnax."""

    name: str = static("CartPole-v1", "the environment's id; `jaxrl-hpc list envs` shows them")
    params: dict[str, int | float | bool] = Field(
        default_factory=dict,
        description="parameters of the environment to change, such as max_steps_in_episode",
    )
    previous_step: bool = static(False, "also observe the previous action and reward, for agents with memory")


def _bound(value: Any, shape: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(np.asarray(value, np.float32), shape).copy()


def encoder(env: Any, params: Any) -> Callable[[PyTree], PyTree]:
    """Observations as agents get them: discrete ones one-hot encoded, all others unchanged."""
    from jaxrl_hpc.envs.gymnax_api import spaces

    try:
        space = env.observation_space(params)
    except NotImplementedError:  # a class of the user's: shapes tell all else
        return lambda obs: obs
    if isinstance(space, spaces.Discrete):
        return lambda obs: jax.nn.one_hot(obs, int(space.n))
    return lambda obs: obs


def describe(env: Any, params: Any, name: str, info_keys: tuple[str, ...] = ()) -> EnvSpec:
    """The spec of a gymnax environment."""
    from jaxrl_hpc.envs.gymnax_api import spaces

    encode = encoder(env, params)
    obs = jax.eval_shape(lambda: encode(env.reset(jax.random.key(0), params)[0]))
    if not hasattr(obs, "shape"):
        raise UserError(f"env {name!r} has observations of several parts; only single arrays are supported")
    action = env.action_space(params)
    limit = int(getattr(params, "max_steps_in_episode", 1_000))
    if isinstance(action, spaces.Discrete):
        return EnvSpec(name, obs.shape, np.dtype(obs.dtype), int(action.n), (), None, None, limit, info_keys)
    if isinstance(action, spaces.Box):
        shape = tuple(action.shape)
        low, high = _bound(action.low, shape), _bound(action.high, shape)
        return EnvSpec(name, obs.shape, np.dtype(obs.dtype), None, shape, low, high, limit, info_keys)
    raise UserError(
        f"env {name!r} has actions of type {type(action).__name__}; Discrete and Box are supported"
    )


def from_gymnax(
    env: Any,
    params: Any,
    name: str,
    info_keys: tuple[str, ...] = (),
    summarise: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] | None = None,
) -> Env:
    """An `Env` of as many copies as it is given keys."""
    spec, encode = describe(env, params, name, info_keys), encoder(env, params)

    def reset(key: Array) -> tuple[PyTree, PyTree]:
        obs, state = jax.vmap(env.reset, in_axes=(0, None))(key, params)
        return state, encode(obs)

    def step_one(key: Array, state: PyTree, action: Array):
        obs, state, reward, terminated, truncated, info = env.step(key, state, action, params)
        kept = {k: jnp.asarray(info[k], jnp.float32) for k in info_keys}
        # a step that both fails and hits the limit is a failure: nothing to bootstrap from
        truncated = jnp.logical_and(truncated, jnp.logical_not(terminated))
        reward = jnp.asarray(reward, jnp.float32).reshape(())
        final = encode(info["final_observation"])
        return state, EnvStep(encode(obs), final, reward, terminated, truncated, kept)

    def step(key: Array, state: PyTree, action: Array) -> tuple[PyTree, EnvStep]:
        return jax.vmap(step_one)(key, state, action)

    return Env(spec, reset, step, HostHooks(summarise=summarise))


def with_params(name: str, params: Any, changes: Mapping[str, Any]) -> Any:
    """Parameters with some changed, or a sentence on a change that they do not have or that does not fit."""
    known = {k: getattr(params, k) for k in getattr(params, "__dataclass_fields__", {})}
    for key, value in changes.items():
        if key not in known:
            raise UserError(
                f"env.params.{key}: {name} has no such parameter; it has {', '.join(sorted(known)) or 'none'}"
            )
        if isinstance(known[key], int) and not isinstance(value, int):
            raise UserError(f"env.params.{key}: {value!r} is not a whole number")
        if isinstance(known[key], float) and isinstance(value, str):
            raise UserError(f"env.params.{key}: {value!r} is not a number")
    return params.replace(**changes) if changes else params


def make(config: Config) -> Env:
    from jaxrl_hpc.envs import gymnax_api

    env, params = gymnax_api.make(config.name)
    made = from_gymnax(env, with_params(config.name, params, config.params), config.name)
    made = made.with_hooks(draw=render.find(config.name))
    return previous_step.wrap(made) if config.previous_step else made
