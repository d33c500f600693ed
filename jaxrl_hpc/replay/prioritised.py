"""Prioritised replay: windows are drawn in proportion to (|TD error| + epsilon)^alpha.

New windows get the largest priority seen so far, or the one given with them; `priorities.py` has the
equations of priorities and weights. Paper: Schaul et al. 2016, "Prioritized experience replay".

A window's priority is zero, so that it is never drawn, until its last step is written and again from
the moment its first step is overwritten.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import chex
import jax.numpy as jnp
from flax import struct

from jaxrl_hpc.replay import global_sampling, storage, sum_tree
from jaxrl_hpc.replay.kernels import Kernel, operations
from jaxrl_hpc.replay.priorities import scaled, weights
from jaxrl_hpc.replay.sizes import ReplayConfig, ReplaySizes, replay_sizes
from jaxrl_hpc.schema import static, traced
from jaxrl_hpc.types import Array, Batch, Replay, Transition


class Config(ReplayConfig):
    """Settings of the prioritised replay."""

    name: Literal["prioritised"] = "prioritised"
    alpha: float = traced(0.6, "exponent of priorities: 0 is uniform", ge=0.0, le=1.0)
    beta_start: float = traced(0.4, "initial exponent of importance weights", ge=0.0, le=1.0)
    beta_end: float = traced(1.0, "exponent of importance weights at the end of the run", ge=0.0, le=1.0)
    epsilon: float = traced(1e-6, "added to every priority, so that every window can be drawn", gt=0.0)
    fanout: Literal[2, 4, 8, 16, 32, 64] = static(8, "children per node of the sum tree")
    sampling: Literal["stratified", "independent"] = static(
        "stratified", "stratified: one draw from each of N equal parts of the mass; else independent draws"
    )
    kernel: Kernel = static("auto", "the sum tree's implementation; auto: compiled on CPU, else pure JAX")


@struct.dataclass
class Pending:
    """Incomplete windows: those that start in the last n - 1 steps."""

    priority: Array  # [n - 1, B] priority^alpha given for them; 0: the highest when complete
    last: Array  # [n - 1, B] whether an episode ended there


@struct.dataclass
class PrioritisedState:
    """The memory."""

    memory: storage.Memory
    tree: Array  # [tree size] sums of priority^alpha by window index
    highest: Array  # [] the largest priority^alpha so far
    pending: Pending
    hypers: dict[str, Array]  # alpha, beta_start, beta_end, epsilon


def make(config: Config, *, num_envs: int, unroll_length: int, window: int, batch_size: int) -> Replay:
    sizes = replay_sizes(
        config, num_envs=num_envs, unroll_length=unroll_length, window=window, batch_size=batch_size
    )
    return build(config, sizes, stride=1, within=False)


def build(config: Config, sizes: ReplaySizes, *, stride: int, within: bool) -> Replay:
    """Windows that start at multiples of `stride` steps and, if `within`, lie inside one episode."""
    store = storage.storage(sizes, config.store_next, config.final_capacity)
    shape = sum_tree.layout(sizes.capacity, config.fanout)
    stratified = config.sampling == "stratified"
    tree_op = operations(shape, config.kernel, number=sizes.batch_size, stratified=stratified)

    def init(example: Transition, hypers: dict[str, Array]) -> PrioritisedState:
        begun = (sizes.window - 1, sizes.num_envs)
        return PrioritisedState(
            memory=storage.init(store, example),
            tree=sum_tree.empty(shape),
            highest=jnp.ones((), jnp.float32),
            pending=Pending(priority=jnp.zeros(begun, jnp.float32), last=jnp.zeros(begun, bool)),
            hypers=dict(hypers),
        )

    def add(state: PrioritisedState, unroll: Transition, priority: Array | None = None) -> PrioritisedState:
        given = jnp.zeros((sizes.unroll_length, sizes.num_envs), jnp.float32)
        if priority is not None:
            chex.assert_shape(priority, given.shape)
            given = scaled(priority, state.hypers)
        highest = jnp.maximum(state.highest, given.max())
        waiting = jnp.concatenate([state.pending.priority, given])
        last = jnp.concatenate([state.pending.last, unroll.last])
        complete = completed(sizes, state.memory.ring.written, last, stride, within)
        values = jnp.where(complete, jnp.where(waiting > 0, waiting, highest), 0.0)
        first = (state.memory.ring.written - (sizes.window - 1)) % sizes.slots
        memory, lost = storage.add(store, state.memory, unroll)
        tree = tree_op.assign(state.tree, first * sizes.num_envs, values.reshape(-1))
        if lost is not None:
            tree = tree_op.update(tree, lost, jnp.zeros(lost.shape, jnp.float32))
        pending = Pending(priority=waiting[sizes.unroll_length :], last=last[sizes.unroll_length :])
        return dataclasses.replace(state, memory=memory, tree=tree, highest=highest, pending=pending)

    def sample(state: PrioritisedState, key: Array, progress: Array) -> Batch:
        index, mass = tree_op.sample(state.tree, sum_tree.seed(key))
        data = storage.read(store, state.memory, index)
        return Batch(data=data, weight=weights(mass, state.hypers, progress), index=index)

    def prioritise(state: PrioritisedState, index: Array, priority: Array) -> PrioritisedState:
        values = scaled(priority, state.hypers)
        highest = jnp.maximum(state.highest, values.max())
        return dataclasses.replace(state, tree=tree_op.update(state.tree, index, values), highest=highest)

    def drawable(state: PrioritisedState) -> Array:
        found = sum_tree.count(shape, state.tree)
        starts = -(-storage.complete_starts(sizes, state.memory) // stride)
        return jnp.minimum(found / (starts * sizes.num_envs), 1.0)  # the oldest start need not be a multiple

    shared = global_sampling.make(sizes, store, shape, tree_op, stratified)
    return Replay(init, add, sample, prioritise, sizes.min_steps, shared, drawable, capacity=sizes.capacity)


def completed(sizes: ReplaySizes, written: Array, last: Array, stride: int, within: bool) -> Array:
    """Which windows can be sampled after an add of T steps: [n - 1 + T, B], from the last n - 1 starts on.

    The first T of them are complete now, unless they start before the beginning of time or are not
    wanted; the others begin in slots that were overwritten and are not complete yet.
    """
    offset = jnp.arange(last.shape[0], dtype=jnp.int32)
    start = written - (sizes.window - 1) + offset
    complete = (start >= 0) & (offset < sizes.unroll_length) & (start % stride == 0)
    if not within or sizes.window == 1:
        return jnp.broadcast_to(complete[:, None], last.shape)
    ends = jnp.concatenate([jnp.zeros((1, sizes.num_envs), jnp.int32), jnp.cumsum(last, 0, jnp.int32)])
    ends = jnp.pad(ends, ((0, sizes.window), (0, 0)), mode="edge")
    inside = ends[offset + sizes.window - 1] == ends[offset]  # no end before the window's last step
    return complete[:, None] & inside
