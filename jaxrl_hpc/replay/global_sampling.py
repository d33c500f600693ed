"""One replay over many shards: two-level sampling with exactly the distribution of one big tree.

Every shard (device or rank) holds its own tree. To draw a global batch of N:

1. the masses (sums of priorities) of all D shards are gathered: D numbers;
2. every shard makes the same N draws from the same key, and `sum_tree.choose` with the masses as children
   tells for each draw its owner and the fraction that remains: the first step of a descent;
3. each owner goes on in its own tree and puts its rows into a zero buffer of packed rows; one sum over
   the shards (of integers, so exact) gives all N windows to all shards;
4. each shard learns from its part of N / D. Weights are those of the global probabilities, normalised
   over the whole batch. New priorities are gathered and every owner takes its own.

The communication is passed in, so that it works between devices (`device_axis`) and between MPI ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.replay import prioritised, rows, storage, sum_tree
from jaxrl_hpc.replay.geometry import geometry
from jaxrl_hpc.replay.kernels import operations
from jaxrl_hpc.types import Array, Batch, Replay


class Exchange(NamedTuple):
    """What the shards have to do together."""

    shards: int
    rank: Callable[[], Array]  # [] int32 of this shard
    gather: Callable[[Array], Array]  # x […] -> [shards, …], in order of rank
    total: Callable[[Array], Array]  # the sum over shards of unsigned integers


def device_axis(name: str, shards: int) -> Exchange:
    """Exchange over a mapped axis (shard_map, vmap)."""
    return Exchange(
        shards=shards,
        rank=lambda: lax.axis_index(name).astype(jnp.int32),
        gather=lambda x: lax.all_gather(x, name),
        total=lambda x: lax.psum(x, name),
    )


def make(
    config: prioritised.Config,
    exchange: Exchange,
    *,
    num_envs: int,
    unroll_length: int,
    window: int,
    batch_size: int,
) -> Replay:
    """A Replay whose `sample` draws from all shards; sizes are those of one shard, and so is the batch.

    `sample` must be called by all shards with the same key, `prioritise` by all together. An index is
    owner * capacity of a shard + index there.
    """
    sizes = geometry(
        capacity=config.capacity,
        min_size=config.min_size,
        num_envs=num_envs,
        unroll_length=unroll_length,
        window=window,
        batch_size=batch_size,
    )
    local = prioritised.build(config, sizes, stride=1, within=False)
    store = storage.storage(sizes, config.store_next, config.final_capacity)
    shape = sum_tree.layout(sizes.capacity, config.fanout)
    number = batch_size * exchange.shards
    stratified = config.sampling == "stratified"
    tree_op = operations(shape, config.kernel, number=number, stratified=stratified)
    if exchange.shards * sizes.capacity >= 2**31:
        raise UserError(f"replay.capacity is {config.capacity}: all shards together must stay below 2^31")

    def sample(state: prioritised.State, key: Array, progress: Array) -> Batch:
        masses = exchange.gather(sum_tree.total(shape, state.tree))  # [D]
        words = sum_tree.draw(sum_tree.seed(key), number, stratified)
        owner, words = split(masses, words)
        mine = owner == exchange.rank()
        index, mass = tree_op.find(state.tree, words)
        data = storage.read(store, state.memory, index)  # [n, N]
        packing = rows.packing(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), data))
        known = rows.pack(packing, data)
        shared = {
            lane: exchange.total(jnp.where(mine[None, :, None], x, jnp.zeros((), x.dtype)))
            for lane, x in known.items()
        }
        index = exchange.total(jnp.where(mine, index, 0).astype(jnp.uint32)).astype(jnp.int32)
        bits = lax.bitcast_convert_type(jnp.where(mine, mass, 0.0), jnp.uint32)
        mass = lax.bitcast_convert_type(exchange.total(bits), jnp.float32)
        weight = prioritised.weights(mass, state.hypers, progress)
        # Shard r takes draws r, r + D, …: every shard sees every part of a stratified sample.
        part = exchange.rank() + exchange.shards * jnp.arange(batch_size, dtype=jnp.int32)
        return Batch(
            data=rows.unpack(packing, {lane: jnp.take(x, part, axis=1) for lane, x in shared.items()}),
            weight=weight[part],
            index=(owner * sizes.capacity + index)[part],
        )

    def prioritise(state: prioritised.State, index: Array, priority: Array) -> prioritised.State:
        everyone = exchange.gather(index).reshape(-1)
        values = prioritised.scaled(exchange.gather(priority).reshape(-1), state.hypers)
        place = jnp.where(
            everyone // sizes.capacity == exchange.rank(), everyone % sizes.capacity, jnp.int32(-1)
        )
        # The largest priority counts for all shards: new windows are as likely on every one.
        highest = jnp.maximum(state.highest, values.max())
        return dataclasses.replace(state, tree=tree_op.update(state.tree, place, values), highest=highest)

    return local._replace(sample=sample, prioritise=prioritise)


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
