"""One replay over many shards: two-level sampling with exactly the distribution of one big tree.

Every shard holds its own tree and rows. To draw a global batch of N:

1. the masses (sums of priorities) of all S shards are gathered: S numbers (`mass`);
2. every shard makes the same N draws from the same key, and `sum_tree.choose` with the masses as children
   gives the owner of each draw and the fraction that remains: the first step of a descent;
3. each owner continues in its own tree and puts its rows into a zero buffer of packed rows (`offer`, for all
   shards of a device at once); one sum over devices (of integers, so exact) gives all N windows to all
   shards (`assemble`);
4. shard s learns from draws s, s + S, …: every shard sees every part of a stratified sample. Weights are
   those of the global probabilities, normalised over the whole batch. New priorities of all N draws are sent
   to all shards, and every owner applies its own (`prioritise`).

These are the functions of one shard; the gathering and summing between them belongs to the workflow, because
it differs between devices and MPI ranks.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from jaxrl_hpc.ops import row_packing
from jaxrl_hpc.replay import priorities, storage, sum_tree
from jaxrl_hpc.replay.kernels import Operations
from jaxrl_hpc.replay.sizes import ReplaySizes
from jaxrl_hpc.types import Array, Batch, SharedReplay, Transition

if TYPE_CHECKING:
    from jaxrl_hpc.replay.prioritised import PrioritisedState


def make(
    sizes: ReplaySizes,
    store: storage.Storage,
    shape: sum_tree.TreeLayout,
    tree_op: Operations,
    stratified: bool,
) -> SharedReplay:
    """Sampling over shards that all have these sizes; the batch is that of one shard."""

    def mass(state: PrioritisedState) -> tuple[PrioritisedState, Array]:
        # The barrier makes everything that changes the tree wait for this: else XLA copies the tree.
        tree, total = lax.optimization_barrier((state.tree, sum_tree.total(shape, state.tree)))
        return dataclasses.replace(state, tree=tree), total

    def look_up(state: PrioritisedState, shard: Array, words: Array) -> Array:
        """Rows [b, words] of draws [b, 2] within one shard."""
        index, weight = tree_op.find(state.tree, words)
        data = storage.read(store, state.memory, index)  # [n, b]
        known = row_packing.pack(packing_of(data), data)[row_packing.LANE]
        row = jnp.swapaxes(known, 0, 1).reshape(words.shape[0], -1)  # [b, n * width]
        place = (shard * sizes.capacity + index).astype(jnp.uint32)
        bits = lax.bitcast_convert_type(weight, jnp.uint32)
        return jnp.concatenate([place[:, None], bits[:, None], row], axis=1)

    def offer(states: PrioritisedState, shards: Array, masses: Array, key: Array) -> Array:
        number = sizes.batch_size * masses.shape[0]
        owner, words = split(masses, sum_tree.draw(sum_tree.seed(key), number, stratified))
        # A shard looks up its own draws only, a block at a time: one pass is enough unless it holds more
        # than twice its share of the mass.
        block = min(number, 2 * sizes.batch_size)
        local = owner - shards[0]  # a device's shards follow each other
        here = (local >= 0) & (local < shards.shape[0])
        counts = jnp.cumsum(owner == shards[:, None], axis=1, dtype=jnp.int32)  # [L, N] own draws so far
        local = jnp.where(here, local, 0)
        place = counts[local, jnp.arange(number)] - 1  # of a draw among its owner's

        def one_pass(turn: Array, rows: Array) -> Array:
            wanted = turn * block + jnp.arange(1, block + 1, dtype=jnp.int32)
            draws = jax.vmap(lambda c: jnp.searchsorted(c, wanted, method="scan_unrolled"))(counts)
            mine = words.at[draws].get(mode="clip")  # [L, b, 2]
            found = jax.vmap(look_up)(states, shards, mine)  # [L, b, words]
            found = found.reshape(-1, found.shape[-1])
            taken = found.at[local * block + place - turn * block].get(mode="clip")  # [N, words]
            return jnp.where((here & (place // block == turn))[:, None], taken, rows)

        width = jax.eval_shape(jax.vmap(look_up), states, shards, words[None, :1].repeat(len(shards), 0))
        passes = -(-counts[:, -1].max() // block)
        rows: Array = lax.fori_loop(0, passes, one_pass, jnp.zeros((number, width.shape[-1]), jnp.uint32))
        return rows

    def assemble(state: PrioritisedState, words: Array, progress: Array) -> Batch:
        number = words.shape[0]
        index = words[:, 0].astype(jnp.int32)
        weight = lax.bitcast_convert_type(words[:, 1], jnp.float32)
        example = jax.eval_shape(
            lambda memory: storage.read(store, memory, jnp.zeros(1, jnp.int32)), state.memory
        )
        lane = jnp.swapaxes(words[:, 2:].reshape(number, sizes.window, -1), 0, 1)  # [n, N, width]
        return Batch(
            data=row_packing.unpack(packing_of(example), {row_packing.LANE: lane}),
            weight=priorities.weights(weight, state.hypers, progress),
            index=index,
        )

    def scale(state: PrioritisedState, priority: Array) -> Array:
        return priorities.scaled(priority, state.hypers)

    def prioritise(state: PrioritisedState, shard: Array, index: Array, values: Array) -> PrioritisedState:
        place = jnp.where(index // sizes.capacity == shard, index % sizes.capacity, jnp.int32(-1))
        # The largest priority is shared by all shards, so that new windows are equally likely on each.
        highest = jnp.maximum(state.highest, values.max())
        return dataclasses.replace(state, tree=tree_op.update(state.tree, place, values), highest=highest)

    return SharedReplay(mass, offer, assemble, scale, prioritise)


def packing_of(data: Transition) -> row_packing.RowLayout:
    """The layout of one step of windows [n, N]."""
    return row_packing.packing(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), data))


def part_of(batch: Batch, shard: Array, shards: int) -> Batch:
    """The part of a global batch that a shard learns from: draws s, s + S, …"""
    count = batch.weight.shape[0] // shards
    part = shard + shards * jnp.arange(count, dtype=jnp.int32)
    return Batch(
        data=jax.tree.map(lambda x: jnp.take(x, part, axis=1, mode="clip"), batch.data),
        weight=batch.weight[part],
        index=batch.index[part],
    )


def split(masses: Array, words: Array) -> tuple[Array, Array]:
    """The shard of each draw [N, 2] and the draw within it: (owner [N] int32, words [N, 2])."""
    shards = masses.shape[0]
    width = 1 << (shards - 1).bit_length()
    padded = jnp.pad(masses.astype(jnp.float32), (0, width - shards))
    children = jnp.broadcast_to(padded, (words.shape[0], width))
    if width == 1:
        return jnp.zeros(words.shape[0], jnp.int32), words
    with jax.enable_x64(True):
        owner, fraction = sum_tree.choose(children, sum_tree.to_fraction(words))
        within = sum_tree.to_words(fraction)
    return jnp.minimum(owner, shards - 1), within
