"""A run divided into logical shards: its state, and the stages of its iterations.

A stage is the work of one device between two collectives: a function

    (work, local, received) -> (work, local, sent)

of replicated data (`IterationWork`), data of the device's own shards (`ShardWork`, leading axis of shards),
and the result of the previous collective. The data it sends has a leading axis of shards too. `stages.py` has
the stages, `execution.py` makes programs of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxrl_hpc.comm.collectives import Kind, shape_of_one
from jaxrl_hpc.rollout import Episodes, RolloutState
from jaxrl_hpc.types import Array, Batch, LearnerState, Metrics, PyTree


class ReplicatedState(NamedTuple):
    """The part of the run's state that is the same on all devices and ranks."""

    learner: LearnerState
    key: Array  # [] never consumed: folded with iteration, update and shard
    iteration: Array  # [] int32
    env_steps: Array  # [] int32, of all shards
    ahead: PyTree = ()  # draw_ahead: rows [N, words] of the next update's batch


class ShardState(NamedTuple):
    """The part that belongs to shards; leading axis [L] on every leaf."""

    shard: Array  # [L] int32 logical number
    rollout: RolloutState  # [L, B / S, …]
    replay: PyTree  # () for agents that learn from trajectories


class ShardedState(NamedTuple):
    """One process's part of the whole run."""

    shared: ReplicatedState
    own: ShardState


class IterationWork(NamedTuple):
    """Replicated state, and temporaries of an iteration."""

    shared: ReplicatedState
    sums: Metrics  # over updates
    done: Array  # [] int32 updates in these sums
    update: Array  # [] int32 of this iteration
    part: Array  # [] int32 of this update: epochs and minibatches
    index: PyTree = ()  # [N] drawn from all shards; () outside an update, and if shards draw alone
    priority: PyTree = ()  # [N] that these draws got


class ShardWork(NamedTuple):
    """Shards' state, and temporaries of an iteration."""

    own: ShardState
    episodes: Episodes  # [L] that ended
    data: PyTree = ()  # unrolls [L, T, B / S], then a Sample; () outside an iteration


class Sample(NamedTuple):
    """Data of an update; leading axis [L] on every leaf."""

    batches: Batch  # [L, M, …]
    slots: Array  # [L, N / S] of the replay
    priority: Array  # [L, N / S] of the last gradient


class Stage(NamedTuple):
    """A stage and the collective that follows it."""

    run: Callable[[Any, Any, Any], tuple[Any, Any, Any]]
    then: Kind | None = None


class ShardedSettings(NamedTuple):
    """Sizes and rules."""

    shards: int  # S
    copies: int  # B / S
    unroll_length: int
    updates: int  # K, of an iteration
    total_env_steps: int
    deterministic: bool
    sample_globally: bool
    draw_ahead: bool
    actor_priorities: bool

    @property
    def steps_per_iteration(self) -> int:
        return self.shards * self.copies * self.unroll_length


def each(settings: ShardedSettings, shards: Array, function: Callable[..., PyTree], *trees: PyTree) -> PyTree:
    """The function of every shard, over leading axes [L].

    When deterministic, one after the other at the shard's shape: neither vectorisation over shards nor
    the number of shards on this device can then change a bit.
    """
    if not settings.deterministic:
        return jax.vmap(function)(*trees)
    one = jax.eval_shape(function, *shape_of_one(trees))
    buffers = jax.tree.map(lambda s: lax.full((shards.shape[0], *s.shape), 0, s.dtype), one)

    def body(i: Array, buffers: PyTree) -> PyTree:
        results = function(*jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, i, keepdims=False), trees))
        return jax.tree.map(lambda b, r: lax.dynamic_update_index_in_dim(b, r, i, 0), buffers, results)

    count = jnp.sum(shards >= 0, dtype=jnp.int32)  # all; a constant would let the compiler inline the body
    return lax.fori_loop(jnp.int32(0), count, body, buffers)


def first_of(tree: PyTree) -> PyTree:
    """The first shard's part."""
    return jax.tree.map(lambda x: x[0], tree)
