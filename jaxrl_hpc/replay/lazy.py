"""Lazy writing: reserve, write, commit, so that producers never wait on the sum tree.

Items are whole windows (leaves [n, …]) that producers bring in any order and at any time.

    reserve(state, count)         -> (state, tickets): the ring's next slots; their priority is zero now
    write(state, tickets, items)  -> state: the data; the tree is not touched
    commit(state, tickets, p)     -> state: one batched tree update makes written items drawable

A ticket is the number of its reservation since the beginning, so slot = ticket mod capacity. A slot's
`stamp` is the ticket whose data it holds. A write counts only while its ticket owns the slot (the ring has
not come round), and a commit only where the stamp is the ticket: an item that is half written, reserved
again, or committed twice too late is never drawn. Reserving and committing touch the tree once for any
number of items; that is the whole gain (Zhang et al. 2021, PALRL).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_hpc.ops import row_packing
from jaxrl_hpc.replay import priorities, prioritised, sum_tree
from jaxrl_hpc.replay.kernels import operations
from jaxrl_hpc.types import Array, Batch, PyTree, Ring, Transition


@struct.dataclass
class LazyState:
    """The memory."""

    ring: Ring  # lanes [capacity, width] and "stamp" [capacity]; written counts reservations
    tree: Array  # [tree size] priority^alpha by slot
    highest: Array  # [] the largest priority^alpha so far
    hypers: dict[str, Array]  # alpha, beta_start, beta_end, epsilon
    packing: row_packing.RowLayout = struct.field(pytree_node=False)


class LazyReplay(NamedTuple):
    """A prioritised memory with separate steps of insertion; pure functions, in place under donation."""

    init: Callable[[Transition, dict[str, Array]], LazyState]  # (one example item [n, …], hypers)
    reserve: Callable[[LazyState, int], tuple[LazyState, Array]]  # (state, static count) -> tickets [count]
    write: Callable[[LazyState, Array, Transition], LazyState]  # (state, tickets [m], items [m, n, …])
    commit: Callable[
        [LazyState, Array, Array | None], LazyState
    ]  # (state, tickets [m], priorities [m] or None)
    sample: Callable[[LazyState, Array, Array], Batch]  # (state, key, progress) -> windows [n, N]
    prioritise: Callable[[LazyState, Array, Array], LazyState]  # (state, index [N], priority [N])


def make(config: prioritised.Config, *, batch_size: int) -> LazyReplay:
    """`min_size` and the storage of next observations play no part: items bring their own."""
    capacity = config.capacity
    shape = sum_tree.layout(capacity, config.fanout)
    stratified = config.sampling == "stratified"
    tree_op = operations(shape, config.kernel, number=batch_size, stratified=stratified)

    def init(example: Transition, hypers: dict[str, Array]) -> LazyState:
        packing = row_packing.packing(example)
        data = {**row_packing.empty(packing, capacity), "stamp": jnp.full(capacity, -1, jnp.int32)}
        return LazyState(
            ring=Ring(data=data, written=jnp.zeros((), jnp.int32)),
            tree=sum_tree.empty(shape),
            highest=jnp.ones((), jnp.float32),
            hypers=dict(hypers),
            packing=packing,
        )

    def reserve(state: LazyState, count: int) -> tuple[LazyState, Array]:
        tickets = state.ring.written + jnp.arange(count, dtype=jnp.int32)
        start = state.ring.written % capacity
        tree = tree_op.assign(state.tree, start, jnp.zeros(count, jnp.float32))
        ring = Ring(data=state.ring.data, written=state.ring.written + count)
        return dataclasses.replace(state, ring=ring, tree=tree), tickets

    def write(state: LazyState, tickets: Array, items: PyTree) -> LazyState:
        owns = (tickets >= 0) & (tickets < state.ring.written) & (tickets >= state.ring.written - capacity)
        slot = jnp.where(owns, tickets % capacity, capacity)  # beyond the end: dropped
        fresh = {**row_packing.pack(state.packing, items), "stamp": tickets}
        data = {name: x.at[slot].set(fresh[name], mode="drop") for name, x in state.ring.data.items()}
        return dataclasses.replace(state, ring=Ring(data=data, written=state.ring.written))

    def commit(state: LazyState, tickets: Array, priority: Array | None = None) -> LazyState:
        slot = tickets % capacity
        held = state.ring.data["stamp"].at[slot].get(mode="promise_in_bounds") == tickets
        held &= (tickets >= 0) & (tickets >= state.ring.written - capacity)
        values = jnp.broadcast_to(state.highest, tickets.shape)
        if priority is not None:
            values = priorities.scaled(priority, state.hypers)
        tree = tree_op.revive(state.tree, jnp.where(held, slot, -1), values)
        highest = jnp.maximum(state.highest, jnp.where(held, values, 0.0).max())
        return dataclasses.replace(state, tree=tree, highest=highest)

    def sample(state: LazyState, key: Array, progress: Array) -> Batch:
        index, mass = tree_op.sample(state.tree, sum_tree.seed(key))
        lanes = {lane: state.ring.data[lane] for lane, _ in state.packing.widths}
        items = row_packing.unpack(state.packing, row_packing.gather(lanes, index))  # [N, n, …]
        data = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), items)
        return Batch(data=data, weight=priorities.weights(mass, state.hypers, progress), index=index)

    def prioritise(state: LazyState, index: Array, priority: Array) -> LazyState:
        values = priorities.scaled(priority, state.hypers)
        highest = jnp.maximum(state.highest, values.max())
        return dataclasses.replace(state, tree=tree_op.update(state.tree, index, values), highest=highest)

    return LazyReplay(init, reserve, write, commit, sample, prioritise)
