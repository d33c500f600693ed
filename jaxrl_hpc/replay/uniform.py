"""Uniform replay: every complete window of the last `capacity` transitions is equally likely.

A window is n consecutive steps of one environment copy. Its index is slot * B + copy of its first step.
It can be sampled once its last step is written and until its first step is overwritten, so that no
sample ever mixes the newest with the oldest rows of the ring.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_hpc.replay import storage
from jaxrl_hpc.replay.sizes import ReplayConfig, ReplaySizes, replay_sizes
from jaxrl_hpc.types import Array, Batch, Replay, Transition


class Config(ReplayConfig):
    """Settings of the uniform replay."""

    name: Literal["uniform"] = "uniform"


@struct.dataclass
class UniformState:
    """The memory."""

    memory: storage.Memory
    hypers: dict[str, Array]  # none here


def make(config: Config, *, num_envs: int, unroll_length: int, window: int, batch_size: int) -> Replay:
    sizes = replay_sizes(
        config, num_envs=num_envs, unroll_length=unroll_length, window=window, batch_size=batch_size
    )
    store = storage.storage(sizes, config.store_next, config.final_capacity)

    def init(example: Transition, hypers: dict[str, Array]) -> UniformState:
        return UniformState(memory=storage.init(store, example), hypers=dict(hypers))

    def add(state: UniformState, unroll: Transition, priority: Array | None = None) -> UniformState:
        del priority  # all windows are equal
        memory, _ = storage.add(store, state.memory, unroll)
        return dataclasses.replace(state, memory=memory)

    def sample(state: UniformState, key: Array, progress: Array) -> Batch:
        del progress
        index = draw(sizes, state.memory, key)
        data = storage.read(store, state.memory, index)
        return Batch(data=data, weight=jnp.ones(batch_size, jnp.float32), index=index)

    def prioritise(state: UniformState, index: Array, priority: Array) -> UniformState:
        del index, priority
        return state

    def drawable(state: UniformState) -> Array:
        _, starts = drawable_starts(sizes, state.memory)
        return starts / storage.complete_starts(sizes, state.memory)

    return Replay(
        init,
        add,
        sample,
        prioritise,
        sizes.min_steps,
        drawable=drawable,
        has_priorities=False,
        capacity=sizes.capacity,
    )


def drawable_starts(sizes: ReplaySizes, memory: storage.Memory) -> tuple[Array, Array]:
    """(time of the first slot whose windows are whole for sure, how many such slots: at least 1)."""
    written = memory.ring.written
    oldest = jnp.maximum(jnp.maximum(written - sizes.slots, 0), memory.valid_from)
    return oldest, jnp.maximum(written - sizes.window + 1 - oldest, 1)


def draw(sizes: ReplaySizes, memory: storage.Memory, key: Array) -> Array:
    """Indices [N] of complete windows, equally likely. Consumes key."""
    oldest, starts = drawable_starts(sizes, memory)
    number = jax.random.randint(key, (sizes.batch_size,), 0, starts * sizes.num_envs)
    slot = (oldest + number // sizes.num_envs) % sizes.slots
    return slot * sizes.num_envs + number % sizes.num_envs
