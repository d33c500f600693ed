"""Storage of transitions: a ring of packed rows, and next observations that are not stored twice.

One slot is one time step of all B copies. An unroll of T steps is one contiguous block, which never wraps
because the number of slots is a multiple of T. Consecutive unrolls continue each other copy by copy.

Small next observations are stored in the row. Large ones are found by index: the next observation of a
step is the observation of the step after it, except

- at an episode's end, where it is the observation before the reset: kept in a side ring of F rows;
- at the newest step, whose successor has not been written: kept in `tail`, one row per copy.

When the side ring wraps around, a step whose final observation is overwritten can no longer be sampled.
`add` reports the windows that this ends (`lost`), and `valid_from` is the first step after all of them.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import chex
import jax.numpy as jnp
from flax import struct

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.ops import row_packing
from jaxrl_hpc.replay.sizes import ReplaySizes, StoreNext
from jaxrl_hpc.types import Array, Ring, Transition

LARGE_OBSERVATION = 1024  # bytes from which `auto` finds next observations by index


class StorageLayout(NamedTuple):
    """How the rows of one run are laid out. Static and hashable."""

    steps: row_packing.RowLayout  # of a transition, or of (transition without next_obs, ticket)
    finals: row_packing.RowLayout | None  # of a next observation; None where it is stored in the row


@struct.dataclass
class Memory:
    """The stored data."""

    ring: Ring  # lanes [slots, B, width]
    finals: Ring | None  # lanes [F, width] and "time" [F], "copy" [F] of the step each belongs to
    tail: dict[str, Array] | None  # lanes [B, width]: the newest steps' next observations
    valid_from: Array  # [] int32 time of the first step whose window is whole for sure
    plan: StorageLayout = struct.field(pytree_node=False)


class Storage(NamedTuple):
    """The static side: sizes and rules."""

    sizes: ReplaySizes
    store_next: StoreNext
    final_rows: int  # F


def storage(sizes: ReplaySizes, store_next: StoreNext, final_capacity: int) -> Storage:
    """final_capacity 0: a sixteenth of the capacity, and enough for the newest windows in any case."""
    least = (sizes.window + sizes.unroll_length) * sizes.num_envs
    if 0 < final_capacity < least:
        raise UserError(f"replay.final_capacity is {final_capacity}: it must be 0 or at least {least}")
    return Storage(sizes, store_next, final_capacity or max(sizes.capacity // 16, least))


def init(store: Storage, example: Transition) -> Memory:
    sizes = store.sizes
    observation = row_packing.packing(example.next_obs)
    large = row_packing.row_bytes(observation) >= LARGE_OBSERVATION
    by_index = store.store_next == "by_index" or (store.store_next == "auto" and large)
    if not by_index:
        plan = StorageLayout(row_packing.packing(example), None)
        finals, tail = None, None
    else:
        plan = StorageLayout(row_packing.packing((example._replace(next_obs=()), jnp.int32(0))), observation)
        lanes = row_packing.empty(observation, store.final_rows)
        owner = {name: jnp.zeros(store.final_rows, jnp.int32) for name in ("time", "copy")}
        finals = Ring(data={**lanes, **owner}, written=jnp.zeros((), jnp.int32))
        tail = row_packing.empty(observation, sizes.num_envs)
    ring = Ring(
        data=row_packing.empty(plan.steps, sizes.slots, sizes.num_envs), written=jnp.zeros((), jnp.int32)
    )
    return Memory(ring=ring, finals=finals, tail=tail, valid_from=jnp.zeros((), jnp.int32), plan=plan)


def add(store: Storage, memory: Memory, unroll: Transition) -> tuple[Memory, Array | None]:
    """Stores an unroll [T, B]. Also gives the indices of windows lost with it; none where -1."""
    sizes = store.sizes
    chex.assert_shape(unroll.last, (sizes.unroll_length, sizes.num_envs))
    if memory.finals is None or memory.plan.finals is None:
        block = row_packing.pack(memory.plan.steps, unroll)
        return dataclasses.replace(memory, ring=row_packing.append(memory.ring, block)), None

    last = unroll.last.reshape(-1)  # [T·B] in order of time
    number = jnp.cumsum(last, dtype=jnp.int32)
    ticket = memory.finals.written + number - 1
    place = jnp.where(last, ticket % store.final_rows, store.final_rows)  # beyond the end: dropped
    time = memory.ring.written + jnp.arange(last.size, dtype=jnp.int32) // sizes.num_envs
    copy = jnp.arange(last.size, dtype=jnp.int32) % sizes.num_envs
    before = memory.finals.data
    replaced = last & (ticket >= store.final_rows)
    old_time = jnp.where(replaced, before["time"].at[place].get(mode="clip"), -1)
    old_copy = before["copy"].at[place].get(mode="clip")

    observations = row_packing.pack(memory.plan.finals, unroll.next_obs)
    flat = {lane: data.reshape(last.size, -1) for lane, data in observations.items()}
    fresh = {**flat, "time": time, "copy": copy}
    data = {name: before[name].at[place].set(fresh[name], mode="drop") for name in before}
    stamped = jnp.where(unroll.last, ticket.reshape(unroll.last.shape), -1)
    block = row_packing.pack(memory.plan.steps, (unroll._replace(next_obs=()), stamped))
    ring = row_packing.append(memory.ring, block)
    memory = dataclasses.replace(
        memory,
        ring=ring,
        finals=Ring(data=data, written=memory.finals.written + number[-1]),
        tail={lane: data[-1] for lane, data in observations.items()},
        valid_from=jnp.maximum(memory.valid_from, old_time.max() + 1),
    )
    # Every window that holds a lost step, unless its first step is overwritten already.
    starts = old_time[:, None] - jnp.arange(sizes.window, dtype=jnp.int32)
    gone = (old_time[:, None] < 0) | (starts < jnp.maximum(ring.written - sizes.slots, 0))
    index = (starts % sizes.slots) * sizes.num_envs + old_copy[:, None]
    return memory, jnp.where(gone, -1, index).reshape(-1)


def complete_starts(sizes: ReplaySizes, memory: Memory) -> Array:
    """Slots in which whole windows start, drawable or not; at least 1."""
    return jnp.maximum(jnp.minimum(memory.ring.written, sizes.slots) - sizes.window + 1, 1)


def read(store: Storage, memory: Memory, index: Array) -> Transition:
    """The windows [n, N] that start at index [N] = slot * B + copy."""
    sizes = store.sizes
    slot, copy = index // sizes.num_envs, index % sizes.num_envs
    length = sizes.window + (memory.finals is not None)
    steps = (slot + jnp.arange(length, dtype=jnp.int32)[:, None]) % sizes.slots  # [n, N]
    lanes = row_packing.gather(memory.ring.data, steps, jnp.broadcast_to(copy, steps.shape))
    if memory.finals is None:
        whole: Transition = row_packing.unpack(memory.plan.steps, lanes)
        return whole

    data: Transition
    data, ticket = row_packing.unpack(memory.plan.steps, {lane: x[:-1] for lane, x in lanes.items()})
    after, _ = row_packing.unpack(memory.plan.steps, {lane: x[1:] for lane, x in lanes.items()})
    assert memory.plan.finals is not None and memory.tail is not None
    kept = {lane: memory.finals.data[lane] for lane, _ in memory.plan.finals.widths}
    final = row_packing.gather(kept, jnp.maximum(ticket, 0) % store.final_rows)
    tail = row_packing.gather(memory.tail, jnp.broadcast_to(copy, ticket.shape))
    newest = steps[:-1] == (memory.ring.written - 1) % sizes.slots
    chosen = {}
    for lane, following in row_packing.pack(memory.plan.finals, after.obs).items():
        chosen[lane] = jnp.where(newest[..., None], tail[lane], following)
        chosen[lane] = jnp.where(data.last[..., None], final[lane], chosen[lane])
    return data._replace(next_obs=row_packing.unpack(memory.plan.finals, chosen))
