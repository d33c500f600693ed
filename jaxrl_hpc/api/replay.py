"""Replay memories for any tree of arrays, alone or in a workflow.

    memory = rl.replay.prioritised(example, capacity=2**16, batch_size=128, window=3)
    state = memory.init()
    state = memory.add(state, item)                  # consumes the state given to it
    batch = memory.sample(state, key)                # data [window, batch_size, …], weight, index
    state = memory.prioritise(state, batch.index, td_error)

`example` is one item without leading axes: a dict, a tuple, a `Transition`, NumPy arrays or numbers. With
`num_envs=B` every `add` brings one item of each of B streams, [B, …], and with `unroll_length=T` that many
steps, [T, B, …]. Windows are consecutive items of one stream. An entry `last` marks the end of an episode.

The functions are compiled and work in place: call them from a NumPy or PyTorch loop, or inside a jitted
function. Sampling makes sense once `memory.min_steps` items have been added.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc import rollout
from jaxrl_hpc.api.parts import attribute_of, documented, numbers, settings_of
from jaxrl_hpc.config.registry import REPLAYS
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.replay.sizes import ReplayConfig
from jaxrl_hpc.types import Agent, Array, Batch, Env, PyTree, Replay, Transition

__all__ = ["example_of", "make", *REPLAYS]

MIN_SIZE = 1_000  # windows before learning, where the capacity allows that


class ReplayOrigin(NamedTuple):
    """Records how a memory was made."""

    config: ReplayConfig
    example: PyTree
    window: int
    batch_size: int


def make(
    name: str,
    example: PyTree,
    *,
    capacity: int = 65_536,
    batch_size: int = 128,
    window: int = 1,
    num_envs: int = 1,
    unroll_length: int = 1,
    min_size: int | None = None,
    **settings: Any,
) -> Replay:
    """A memory by its name in configs, `module:make` included.

    Args:
      name: such as "prioritised".
      example: one item without leading axes; shapes and dtypes count.
      capacity: items kept.
      batch_size: windows of a sample.
      window: consecutive items of a window.
      num_envs: streams that are added side by side.
      unroll_length: items of each stream in one `add`.
      min_size: windows to be stored before sampling; by default 1000, or half of the capacity if less.
      settings: as in a config.

    Returns:
      init() -> state; add(state, items, priority=None) -> state; sample(state, key) -> Batch;
      prioritise(state, index, priority) -> state. `add` and `prioritise` consume the state given to them.
    """
    least = min(MIN_SIZE, max(1, capacity // 2)) if min_size is None else min_size
    sizes = {"capacity": capacity, "min_size": least}
    _, config = settings_of("replay", name, settings | sizes)
    return build(ReplayOrigin(config, _as_example(example), window, batch_size), num_envs, unroll_length)


@documented("replay", "replay")
def uniform(
    example: PyTree, *, capacity: int = 65_536, batch_size: int = 128, window: int = 1, **settings: Any
) -> Replay:
    """Every window is equally likely. Further arguments: num_envs, unroll_length, min_size (see `make`)."""
    sizes = {"capacity": capacity, "batch_size": batch_size, "window": window}
    return make("uniform", example, **(settings | sizes))


@documented("replay", "replay")
def prioritised(
    example: PyTree, *, capacity: int = 65_536, batch_size: int = 128, window: int = 1, **settings: Any
) -> Replay:
    """Windows are drawn by priority. Further arguments: num_envs, unroll_length, min_size (see `make`)."""
    sizes = {"capacity": capacity, "batch_size": batch_size, "window": window}
    return make("prioritised", example, **(settings | sizes))


@documented("replay", "replay")
def sequence(
    example: PyTree, *, capacity: int = 65_536, batch_size: int = 32, window: int = 20, **settings: Any
) -> Replay:
    """Prioritised sequences, for recurrent agents. Further arguments: num_envs, unroll_length, min_size."""
    sizes = {"capacity": capacity, "batch_size": batch_size, "window": window}
    return make("sequence", example, **(settings | sizes))


def example_of(env: Env, agent: Agent) -> Transition:
    """One transition as this agent stores it, all zeros."""

    def one() -> Transition:
        key = jax.random.key(0)
        actor = agent.actor(agent.init(key))
        copies = rollout.start(env, agent, key, jnp.zeros(1, jnp.int32))
        return rollout.unroll(env, agent, actor, copies, 1)[1]

    shapes = jax.eval_shape(one)
    return jax.tree.map(lambda x: jnp.zeros(x.shape[2:], x.dtype), shapes)


def build(origin: ReplayOrigin, num_envs: int, unroll_length: int) -> Replay:
    """The memory for this number of streams."""
    component, _ = settings_of("replay", origin.config.name, {})
    inner: Replay = component.make(
        origin.config,
        num_envs=num_envs,
        unroll_length=unroll_length,
        window=origin.window,
        batch_size=origin.batch_size,
    )
    example, lead = origin.example, (unroll_length, num_envs)
    whole = isinstance(example, Transition)

    def init(example_given: PyTree = None, hypers: Mapping[str, Any] | None = None) -> PyTree:
        item = example if example_given is None else _as_example(example_given)
        return start(item, numbers(origin.config, hypers))

    def add(state: PyTree, items: PyTree, priority: Any = None) -> PyTree:
        _check_not_used_up(state)
        rated = None if priority is None else _with_axes({"priority": priority}, _RATING, lead)["priority"]
        return write(state, _with_axes(items, example, lead), rated)

    def sample(state: PyTree, key: Array | int, progress: Array | float = 0.0) -> Batch:
        _check_not_used_up(state)
        key = jax.random.key(key) if isinstance(key, int) else key
        return draw(state, key, jnp.asarray(progress, jnp.float32))

    def prioritise(state: PyTree, index: Any, priority: Any) -> PyTree:
        _check_not_used_up(state)
        return rate(state, _array(index, jnp.int32), _array(priority, jnp.float32))

    @jax.jit
    def start(item: PyTree, hypers: dict[str, Array]) -> PyTree:
        return inner.init(item if whole else _as_transition(item), hypers)

    def _write(state: PyTree, items: PyTree, priority: Array | None) -> PyTree:
        return inner.add(state, items if whole else _as_transition(items, lead), priority)

    @jax.jit
    def draw(state: PyTree, key: Array, progress: Array) -> Batch:
        batch = inner.sample(state, key, progress)
        return batch if whole else batch._replace(data=batch.data.obs)

    write = jax.jit(_write, donate_argnums=0)
    rate = jax.jit(inner.prioritise, donate_argnums=0)
    return inner._replace(init=init, add=add, sample=sample, prioritise=prioritise, origin=origin)


_RATING = {"priority": np.zeros((), np.float32)}


def _check_not_used_up(state: PyTree) -> None:
    """Refuses a state that an earlier `add` or `prioritise` has consumed."""
    leaf = next(iter(jax.tree.leaves(state)), None)
    if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer) and leaf.is_deleted():
        raise UserError(
            "state: was consumed by an earlier call of add or prioritise: continue with what that returned, "
            "as in state = memory.add(state, items)"
        )


def _array(value: Any, dtype: Any) -> Array:
    """JAX's, NumPy's and PyTorch's arrays, and numbers."""
    value = value if isinstance(value, jax.Array) else np.asarray(value)
    return jnp.asarray(value, dtype)


def _as_example(example: PyTree) -> PyTree:
    def zeros(leaf: Any) -> Array:
        known = hasattr(leaf, "shape") and hasattr(leaf, "dtype")
        array = leaf if known else np.asarray(leaf)
        dtype = array.dtype if isinstance(array.dtype, np.dtype) else np.asarray(array).dtype  # PyTorch's own
        return jnp.zeros(tuple(array.shape), jax.dtypes.canonicalize_dtype(dtype))

    if not jax.tree.leaves(example):
        raise UserError("example: has no arrays; give one item as it will be added, such as a dict of arrays")
    try:
        return jax.tree.map(zeros, example)
    except TypeError:
        raise UserError("example: should hold numbers and arrays of numbers only") from None


def _as_transition(items: PyTree, lead: tuple[int, ...] = ()) -> Transition:
    """Any tree in the place of observations, with the ends of its episodes."""
    last = items.get("last") if isinstance(items, Mapping) else getattr(items, "last", None)
    ends = jnp.zeros(lead, bool) if last is None else jnp.asarray(last, bool)
    return Transition(items, (), (), (), ends, (), ())  # type: ignore[arg-type]


def _with_axes(items: PyTree, example: PyTree, lead: tuple[int, int]) -> PyTree:
    """Items [T, B, …] in the example's dtypes; axes of length 1 may be left out."""
    paths = jax.tree_util.tree_leaves_with_path(example)
    tree: Any = jax.tree.structure(example)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") or "item" for path, _ in paths]
    try:
        leaves = tree.flatten_up_to(items)  # what is a list here may be an array there
    except (ValueError, TypeError):
        raise UserError(f"items: should have what the example has: {', '.join(names)}") from None
    length, copies = lead
    accepted: list[tuple[int, ...]] = [lead]
    accepted += [(copies,)] if length == 1 else []
    accepted += [(length,)] if copies == 1 else []
    accepted += [()] if lead == (1, 1) else []

    def fit(name: str, item: Any, like: Any) -> Array:
        array = _array(item, like.dtype)
        given = array.shape[: array.ndim - like.ndim] if array.ndim >= like.ndim else None
        if given not in accepted or array.shape[len(given) :] != like.shape:
            wanted = " or ".join(str([*axes, *like.shape]) for axes in dict.fromkeys(accepted))
            raise UserError(
                f"items: {name} has shape {list(array.shape)}, but should have {wanted} "
                f"(unroll_length={length}, num_envs={copies})"
            )
        return array.reshape(*lead, *like.shape)

    likes = [like for _, like in paths]
    return tree.unflatten([fit(*row) for row in zip(names, leaves, likes, strict=True)])


def __getattr__(name: str) -> Any:
    return attribute_of(__name__, "replay", "replay", make, name)
