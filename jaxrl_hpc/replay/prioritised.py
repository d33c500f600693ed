"""Prioritised replay: windows are drawn in proportion to (|TD error| + epsilon)^alpha.

    P(i) = p_i^alpha / sum_j p_j^alpha,   w_i = (1 / (M P(i)))^beta / max_j w_j

The weights are normalised by the largest of the batch, so M and the sum cancel:
w_i = (min_j p_j / p_i)^(alpha beta). beta goes from beta_start to beta_end with the run's progress.
New windows get the largest priority seen so far, or the one given with them. Paper: Schaul et al. 2016,
"Prioritized experience replay".

A window's priority is zero, so that it is never drawn, until its last step is written and again from
the moment its first step is overwritten.
"""

from __future__ import annotations

from typing import Literal

import chex
import jax.numpy as jnp
from flax import struct

from jaxrl_hpc.replay import storage, sum_tree
from jaxrl_hpc.replay.geometry import Geometry, geometry
from jaxrl_hpc.schema import Schema, static, traced
from jaxrl_hpc.types import Array, Batch, Replay, Ring, Transition


class Config(Schema):
    """Settings of the prioritised replay."""

    capacity: int = static(65_536, "transitions kept; rounded up to whole unrolls", ge=2)
    min_size: int = static(1_000, "windows stored before learning starts", ge=1)
    alpha: float = traced(0.6, "exponent of priorities: 0 is uniform", ge=0.0, le=1.0)
    beta_start: float = traced(0.4, "exponent of importance weights at the start", ge=0.0, le=1.0)
    beta_end: float = traced(1.0, "exponent of importance weights at the end of the run", ge=0.0, le=1.0)
    epsilon: float = traced(1e-6, "added to every priority, so that none is lost", gt=0.0)
    fanout: Literal[2, 4, 8, 16, 32, 64] = static(8, "children per node of the sum tree")
    sampling: Literal["stratified", "independent"] = static("stratified", "one draw per equal part, or free")


@struct.dataclass
class State:
    """The memory."""

    ring: Ring  # packed transitions [slots, B, …]
    tree: Array  # [tree size] sums of priorities^alpha by window index
    highest: Array  # [] the largest priority^alpha so far
    pending: Array  # [span - 1, B] priority^alpha of windows not yet complete; 0: the highest then
    hypers: dict[str, Array]  # alpha, beta_start, beta_end, epsilon


def make(config: Config, *, num_envs: int, unroll_length: int, window: int, batch_size: int) -> Replay:
    sizes = geometry(
        capacity=config.capacity,
        min_size=config.min_size,
        num_envs=num_envs,
        unroll_length=unroll_length,
        window=window,
        batch_size=batch_size,
    )
    shape = sum_tree.layout(sizes.capacity, config.fanout)
    stratified = config.sampling == "stratified"
    rows: list[storage.Packing] = []  # known from the first example on

    def init(example: Transition, hypers: dict[str, Array]) -> State:
        rows[:] = [storage.packing(example)]
        return State(
            ring=storage.empty(rows[0], sizes.slots, num_envs),
            tree=sum_tree.empty(shape),
            highest=jnp.ones((), jnp.float32),
            pending=jnp.zeros((sizes.span - 1, num_envs), jnp.float32),
            hypers=dict(hypers),
        )

    def add(state: State, unroll: Transition, priority: Array | None = None) -> State:
        given = jnp.zeros((unroll_length, num_envs), jnp.float32)
        if priority is not None:
            chex.assert_shape(priority, (unroll_length, num_envs))
            given = scaled(priority, state.hypers)
        highest = jnp.maximum(state.highest, given.max())
        waiting = jnp.concatenate([state.pending, given])
        first, values = completed(sizes, state.ring.written, jnp.where(waiting > 0, waiting, highest))
        return state.replace(
            ring=storage.write(rows[0], state.ring, unroll),
            tree=sum_tree.assign(shape, state.tree, first * num_envs, values.reshape(-1)),
            highest=highest,
            pending=waiting[unroll_length:],
        )

    def sample(state: State, key: Array, progress: Array) -> Batch:
        words = sum_tree.draw(key, batch_size, stratified)
        index, mass = sum_tree.find(shape, state.tree, words)
        data = storage.read(rows[0], state.ring, index // num_envs, index % num_envs, window)
        return Batch(data=data, weight=weights(mass, state.hypers, progress), index=index)

    def prioritise(state: State, index: Array, priority: Array) -> State:
        values = scaled(priority, state.hypers)
        return state.replace(
            tree=sum_tree.update(shape, state.tree, index, values),
            highest=jnp.maximum(state.highest, values.max()),
        )

    def ready(state: State) -> Array:
        return state.ring.written >= sizes.ready_slots

    return Replay(init, add, sample, prioritise, ready, sizes.min_steps)


def scaled(priority: Array, hypers: dict[str, Array]) -> Array:
    """(|p| + epsilon)^alpha, finite and positive whatever comes in."""
    return sum_tree.clip((jnp.abs(priority) + hypers["epsilon"]) ** hypers["alpha"])


def weights(mass: Array, hypers: dict[str, Array], progress: Array) -> Array:
    """Importance weights [N] in (0, 1] from the priorities^alpha of the drawn windows; 0 if empty."""
    start, end = hypers["beta_start"], hypers["beta_end"]
    beta = start + (end - start) * jnp.clip(progress, 0.0, 1.0)
    drawn = mass > 0
    ratio = mass.min() / jnp.where(drawn, mass, 1.0)
    return jnp.where(drawn, ratio**beta, 0.0)


def completed(sizes: Geometry, written: Array, waiting: Array) -> tuple[Array, Array]:
    """What an add of T steps changes: (first slot, priorities [span - 1 + T, B] from there on).

    waiting [span - 1 + T, B] holds the priorities of the windows that start in the last span - 1 slots
    and in the T new ones. The first T of them are complete now, unless they start before the beginning
    of time; the others, which start in overwritten slots, get zero until they are.
    """
    offset = jnp.arange(waiting.shape[0], dtype=jnp.int32)
    start = written - (sizes.span - 1) + offset
    complete = (start >= 0) & (offset < sizes.unroll_length)
    first = (written - (sizes.span - 1)) % sizes.slots
    return first, jnp.where(complete[:, None], waiting, 0.0)
