"""Jumanji's environments (Bonnet et al. 2024) by id, as part of the compiled program.

An observation there has several named parts. `env.observation` picks one, in its own shape; by default all of
them become one vector. The suite is not among the dependencies: pip install jumanji.
"""

from __future__ import annotations

import difflib
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field

from jaxrl_hpc.envs.external.simulator import in_one_line
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.schema import ComponentConfig, static
from jaxrl_hpc.types import Array, Env, EnvSpec, EnvStep, PyTree

Setting = int | float | bool | str


class Config(ComponentConfig):
    """An environment of Jumanji."""

    name: Literal["jumanji"] = "jumanji"
    id: str = static("Snake-v1", "the environment's id")
    kwargs: dict[str, Setting] = Field(default_factory=dict, description="arguments of jumanji.make")
    observation: str = static("", "the part of observations to use; empty: all of them as one vector")
    max_episode_steps: int = static(
        1_000, "steps after which an evaluation gives up on an episode, if there is no time limit", ge=1
    )


def library() -> Any:
    try:
        import jumanji
    except ImportError:
        raise UserError("env.name: jumanji environments need Jumanji: pip install jumanji") from None
    return jumanji


def made(config: Config) -> Any:
    jumanji = library()
    known = sorted(jumanji.registered_environments())
    if config.id not in known:
        close = difflib.get_close_matches(config.id, known, n=1, cutoff=0.4)
        hint = f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"
        raise UserError(f"env.id: there is no Jumanji environment {config.id!r}{hint}")
    try:
        return jumanji.make(config.id, **config.kwargs)
    except (Exception, SystemExit) as error:
        field = "env.kwargs" if config.kwargs else "env.id"
        raise UserError(f"{field}: {config.id!r} cannot be made: {in_one_line(error)}") from error


def observe(config: Config, observation: PyTree) -> Array:
    """The chosen part, or everything as one vector."""
    if config.observation:
        return getattr(observation, config.observation)
    leaves = jax.tree.leaves(observation)
    return jnp.concatenate([jnp.ravel(x).astype(jnp.float32) for x in leaves])


def describe(config: Config, env: Any) -> EnvSpec:
    first = jax.eval_shape(lambda: env.reset(jax.random.key(0))[1].observation)
    if config.observation and not hasattr(first, config.observation):
        parts = ", ".join(getattr(first, "_fields", ())) or "one part only"
        raise UserError(f"env.observation: {config.id} has no part {config.observation!r}; it has {parts}")
    obs = jax.eval_shape(lambda x: observe(config, x), first)
    action, name = env.action_spec, f"jumanji/{config.id}"
    limit = int(getattr(env, "time_limit", config.max_episode_steps))
    seen = (tuple(obs.shape), np.dtype(obs.dtype))
    if getattr(action, "num_values", None) is not None and action.shape == ():
        return EnvSpec(name, *seen, int(action.num_values), (), None, None, limit)
    if jnp.issubdtype(action.dtype, jnp.floating) and hasattr(action, "minimum"):
        low, high = (
            np.broadcast_to(np.asarray(x, np.float32), action.shape).copy()
            for x in (action.minimum, action.maximum)
        )
        return EnvSpec(name, *seen, None, tuple(action.shape), low, high, limit)
    raise UserError(
        f"env {name!r} has actions of type {type(action).__name__}; one discrete choice or bounded numbers "
        "are supported"
    )


def make(config: Config) -> Env:
    env = made(config)
    spec = describe(config, env)

    def reset_one(key: Array) -> tuple[PyTree, Array]:
        state, step = env.reset(key)
        return state, observe(config, step.observation)

    def step_one(key: Array, state: PyTree, action: Array) -> tuple[PyTree, EnvStep]:
        state, step = env.step(state, action)
        last = step.last()
        fresh, first = reset_one(key)
        seen = observe(config, step.observation)
        state, obs = jax.tree.map(lambda a, b: jnp.where(last, a, b), (fresh, first), (state, seen))
        failed = jnp.logical_and(last, step.discount == 0)  # otherwise the time limit has ended it
        reward = jnp.asarray(step.reward, jnp.float32).reshape(())
        return state, EnvStep(obs, seen, reward, failed, jnp.logical_and(last, ~failed), {})

    def reset(keys: Array) -> tuple[PyTree, Array]:
        return jax.vmap(reset_one)(keys)

    def step(keys: Array, state: PyTree, action: Array) -> tuple[PyTree, EnvStep]:
        return jax.vmap(step_one)(keys, state, action)

    return Env(spec, reset, step)
