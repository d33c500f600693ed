"""Any gymnax 1.x `Environment` as an `Env`: a vmap over copies, with termination and truncation kept apart.

gymnax is imported only when an environment is made: its import starts JAX's backend (which machine.prepare
must do) and takes seconds for unneeded plotting libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field

from jaxrl_hpc.envs import layout, previous_step, render
from jaxrl_hpc.envs.layout import Leaf
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.schema import ComponentConfig, static
from jaxrl_hpc.types import Array, Env, EnvSpec, EnvStep, HostHooks, Part, PyTree


class Config(ComponentConfig):
    """An environment of gymnax."""

    name: str = static("CartPole-v1", "the environment's id; `jaxrl-hpc list envs` shows them")
    params: dict[str, int | float | bool] = Field(
        default_factory=dict,
        description="parameters of the environment to override, such as max_steps_in_episode",
    )
    previous_step: bool = static(False, "also observe the previous action and reward, for agents with memory")


def _bound(value: Any, shape: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(np.asarray(value, np.float32), shape).copy()


class Observer(NamedTuple):
    """Observations in the form that agents get."""

    encode: Callable[[PyTree], Array]  # one observation -> one array
    layout: tuple[Part, ...]  # () where it was one array already


def discrete_paths(space: Any, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], int]:
    """Discrete parts of a space -> their sizes."""
    from jaxrl_hpc.envs.gymnax_api import spaces

    if isinstance(space, spaces.Discrete):
        return {path: int(space.n)}
    inside: dict[Any, Any] = {}
    if isinstance(space, spaces.Dict):
        inside = dict(space.spaces)
    elif isinstance(space, spaces.Tuple):
        inside = dict(enumerate(space.spaces))
    found: dict[tuple[Any, ...], int] = {}
    for key, child in inside.items():
        found |= discrete_paths(child, (*path, key))
    return found


def observer(env: Any, params: Any) -> Observer:
    """One array stays as it is, a whole number becomes one-hot, several parts one vector."""
    try:
        counts = discrete_paths(env.observation_space(params))
    except NotImplementedError:  # a user's class: everything else follows from shapes
        counts = {}
    first = jax.eval_shape(lambda: env.reset(jax.random.key(0), params)[0])
    found, _ = jax.tree_util.tree_flatten_with_path(first)
    if len(found) == 1 and found[0][0] == ():
        if () in counts:
            return Observer(lambda obs: jax.nn.one_hot(obs, counts[()]), ())
        return Observer(lambda obs: obs, ())
    leaves = []
    for keys, value in found:
        path = tuple(_key(key) for key in keys)
        shape = (counts[path],) if path in counts else tuple(value.shape)
        leaves.append(Leaf(path, shape, path in counts))
    order, parts = layout.arranged(leaves)
    return Observer(lambda obs: layout.flatten(obs, order, jnp, jax.nn.one_hot), parts)


def _key(key: Any) -> Any:
    """Content of an entry of JAX's paths: a key, an index or a field's name."""
    if isinstance(key, jax.tree_util.DictKey):
        return key.key
    return key.idx if isinstance(key, jax.tree_util.SequenceKey) else key.name


def describe(env: Any, params: Any, name: str, info_keys: tuple[str, ...] = ()) -> EnvSpec:
    """The spec of a gymnax environment."""
    from jaxrl_hpc.envs.gymnax_api import spaces

    seen = observer(env, params)
    obs = jax.eval_shape(lambda: seen.encode(env.reset(jax.random.key(0), params)[0]))
    action = env.action_space(params)
    limit = int(getattr(params, "max_steps_in_episode", 1_000))
    shape: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    count, low, high = None, None, None
    if isinstance(action, spaces.Discrete):
        count = int(action.n)
    elif isinstance(action, spaces.Tuple) and all(isinstance(s, spaces.Discrete) for s in action.spaces):
        sizes = tuple(int(part.n) for part in action.spaces)
        shape = (len(sizes),)
    elif isinstance(action, spaces.Box):
        shape = tuple(action.shape)
        low, high = _bound(action.low, shape), _bound(action.high, shape)
    else:
        raise UserError(
            f"env {name!r} has actions of type {type(action).__name__}; Discrete, a Tuple of Discrete "
            "(several choices at once) and Box are supported"
        )
    kind = (tuple(obs.shape), np.dtype(obs.dtype))
    spec = EnvSpec(name, *kind, count, shape, low, high, limit, info_keys, sizes, seen.layout)
    return layout.with_mask(spec)


def from_gymnax(
    env: Any,
    params: Any,
    name: str,
    info_keys: tuple[str, ...] = (),
    summarise: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] | None = None,
) -> Env:
    """An `Env` of as many copies as it is given keys."""
    spec, encode = describe(env, params, name, info_keys), observer(env, params).encode

    def reset(key: Array) -> tuple[PyTree, PyTree]:
        obs, state = jax.vmap(env.reset, in_axes=(0, None))(key, params)
        return state, jax.vmap(encode)(obs)

    def step_one(key: Array, state: PyTree, action: Array):
        obs, state, reward, terminated, truncated, info = env.step(key, state, action, params)
        kept = {k: jnp.asarray(info[k], jnp.float32) for k in info_keys}
        # a step that both terminates and hits the limit is a termination: nothing to bootstrap from
        truncated = jnp.logical_and(truncated, jnp.logical_not(terminated))
        reward = jnp.asarray(reward, jnp.float32).reshape(())
        final = encode(info["final_observation"])
        return state, EnvStep(encode(obs), final, reward, terminated, truncated, kept)

    def step(key: Array, state: PyTree, action: Array) -> tuple[PyTree, EnvStep]:
        return jax.vmap(step_one)(key, state, action)

    return Env(spec, reset, step, HostHooks(summarise=summarise))


def with_params(name: str, params: Any, changes: Mapping[str, Any]) -> Any:
    """Parameters with some replaced; UserError for unknown names and wrong values."""
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
