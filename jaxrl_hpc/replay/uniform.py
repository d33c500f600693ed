"""Uniform replay: every complete window of the last `capacity` transitions is equally likely.

A window is n consecutive steps of one environment copy. Its index is slot * B + copy of its first step.
It can be sampled once its last step is written and until its first step is overwritten, so that no
sample ever mixes the newest with the oldest rows of the ring.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_hpc.replay import storage
from jaxrl_hpc.replay.geometry import Geometry, geometry
from jaxrl_hpc.schema import Schema, static
from jaxrl_hpc.types import Array, Batch, Replay, Ring, Transition


class Config(Schema):
    """Settings of the uniform replay."""

    capacity: int = static(65_536, "transitions kept; rounded up to whole unrolls", ge=2)
    min_size: int = static(1_000, "windows stored before learning starts", ge=1)


@struct.dataclass
class State:
    """The memory."""

    ring: Ring  # packed transitions [slots, B, …]
    hypers: dict[str, Array]  # none here


def make(config: Config, *, num_envs: int, unroll_length: int, window: int, batch_size: int) -> Replay:
    sizes = geometry(
        capacity=config.capacity,
        min_size=config.min_size,
        num_envs=num_envs,
        unroll_length=unroll_length,
        window=window,
        batch_size=batch_size,
    )
    rows: list[storage.Packing] = []  # known from the first example on

    def init(example: Transition, hypers: dict[str, Array]) -> State:
        rows[:] = [storage.packing(example)]
        return State(ring=storage.empty(rows[0], sizes.slots, num_envs), hypers=dict(hypers))

    def add(state: State, unroll: Transition, priority: Array | None = None) -> State:
        del priority  # all windows are equal
        return state.replace(ring=storage.write(rows[0], state.ring, unroll))

    def sample(state: State, key: Array, progress: Array) -> Batch:
        del progress
        index = draw(sizes, state.ring.written, key)
        data = storage.read(rows[0], state.ring, index // num_envs, index % num_envs, window)
        return Batch(data=data, weight=jnp.ones(batch_size, jnp.float32), index=index)

    def prioritise(state: State, index: Array, priority: Array) -> State:
        del index, priority
        return state

    def ready(state: State) -> Array:
        return state.ring.written >= sizes.ready_slots

    return Replay(init, add, sample, prioritise, ready, sizes.min_steps)


def draw(sizes: Geometry, written: Array, key: Array) -> Array:
    """Indices [N] of complete windows, equally likely. Consumes key."""
    oldest = jnp.maximum(written - sizes.slots, 0)
    starts = jnp.maximum(written - sizes.span + 1 - oldest, 1)
    number = jax.random.randint(key, (sizes.batch_size,), 0, starts * sizes.num_envs)
    slot = (oldest + number // sizes.num_envs) % sizes.slots
    return slot * sizes.num_envs + number % sizes.num_envs
