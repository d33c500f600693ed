"""A queue of unrolls for agents that learn from trajectories: first in, first out, each once.

`add` appends an unroll [T, B]; `sample` gives the oldest `unrolls` of them that were not consumed, side by
side as [T, unrolls * B]; `prioritise` with the batch's index marks them as consumed. With `depth` = 1 that
is the on-policy pass-through. A queue that is full drops its oldest unroll: an asynchronous learner that
falls behind learns from the newest data it can.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax.numpy as jnp
from flax import struct

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.replay import rows
from jaxrl_hpc.schema import Schema, static
from jaxrl_hpc.types import Array, Batch, Replay, Ring, Transition


class Config(Schema):
    """Settings of the queue."""

    name: Literal["fifo"] = "fifo"
    depth: int = static(1, "unrolls that the queue holds", ge=1)
    unrolls: int = static(1, "unrolls that one batch takes", ge=1)


@struct.dataclass
class State:
    """The queue."""

    ring: Ring  # lanes [depth * T, B, width]
    consumed: Array  # [] int32 unrolls taken out or dropped since the beginning
    hypers: dict[str, Array]  # none here
    packing: rows.Packing = struct.field(pytree_node=False)


def make(config: Config, *, num_envs: int, unroll_length: int, window: int, batch_size: int) -> Replay:
    """`window` and `batch_size` belong to transitions and are not used."""
    del window, batch_size
    depth, taken = config.depth, config.unrolls
    if taken > depth:
        raise UserError(f"replay.unrolls is {taken}: a queue of depth {depth} never holds that many")

    def init(example: Transition, hypers: dict[str, Array]) -> State:
        packing = rows.packing(example)
        data = rows.empty(packing, depth * unroll_length, num_envs)
        zero = jnp.zeros((), jnp.int32)
        return State(ring=Ring(data=data, written=zero), consumed=zero, hypers=dict(hypers), packing=packing)

    def add(state: State, unroll: Transition, priority: Array | None = None) -> State:
        del priority
        ring = rows.append(state.ring, rows.pack(state.packing, unroll))
        consumed = jnp.maximum(state.consumed, ring.written // unroll_length - depth)
        return dataclasses.replace(state, ring=ring, consumed=consumed)

    def sample(state: State, key: Array, progress: Array) -> Batch:
        del key, progress
        ticket = state.consumed + jnp.arange(taken, dtype=jnp.int32)
        step = (ticket % depth * unroll_length)[None, :] + jnp.arange(unroll_length, dtype=jnp.int32)[:, None]
        lanes = rows.gather(state.ring.data, step)  # [T, unrolls, B, width]
        flat = {k: x.reshape(unroll_length, taken * num_envs, x.shape[-1]) for k, x in lanes.items()}
        weight = jnp.ones(taken * num_envs, jnp.float32)
        return Batch(data=rows.unpack(state.packing, flat), weight=weight, index=ticket)

    def prioritise(state: State, index: Array, priority: Array) -> State:
        del priority
        return dataclasses.replace(state, consumed=jnp.maximum(state.consumed, index.max() + 1))

    def ready(state: State) -> Array:
        return state.ring.written // unroll_length - state.consumed >= taken

    return Replay(init, add, sample, prioritise, ready, taken * unroll_length * num_envs)
