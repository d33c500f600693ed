"""A complete replay in one file: combined experience replay (Zhang & Sutton 2017).

Every batch holds the newest window of each environment copy; the rest is drawn uniformly. So every step is
learned from at once, however large the memory is. In this folder:

    jaxrl-hpc train replay.yaml

A replay is a few pure functions of a state; under donation they work in place. It stores unrolls [T, B] and
samples windows of n consecutive steps [n, N]; returns over n steps are the agent's to compute.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.replay.sizes import ReplayConfig, replay_sizes
from jaxrl_hpc.types import Array, Batch, Replay, Ring, Transition


class Config(ReplayConfig):
    """What a config may set: capacity and min_size are enough here."""


def make(config: Config, *, num_envs: int, unroll_length: int, window: int, batch_size: int) -> Replay:
    if batch_size <= num_envs:
        raise UserError(f"agent.batch_size is {batch_size}: it must exceed the {num_envs} environment copies")
    sizes = replay_sizes(
        config, num_envs=num_envs, unroll_length=unroll_length, window=window, batch_size=batch_size
    )  # the number of slots is a multiple of T: no unroll wraps

    def init(example: Transition, hypers: dict[str, Array]) -> Ring:
        rows = jax.tree.map(lambda x: jnp.zeros((sizes.slots, num_envs, *x.shape), x.dtype), example)
        return Ring(data=rows, written=jnp.int32(0))  # a checkpoint writes only new rows of a Ring

    def add(state: Ring, unroll: Transition, priority: Array | None = None) -> Ring:
        first = state.written % sizes.slots
        data = jax.tree.map(
            lambda rows, new: jax.lax.dynamic_update_slice_in_dim(rows, new, first, 0), state.data, unroll
        )
        return Ring(data=data, written=state.written + unroll_length)

    def sample(state: Ring, key: Array, progress: Array) -> Batch:
        newest = state.written - window  # first step of the newest whole window, counted from the beginning
        oldest = jnp.maximum(state.written - sizes.slots, 0)
        time_key, copy_key = jax.random.split(key)
        count = batch_size - num_envs
        drawn = jax.random.randint(time_key, (count,), oldest, newest + 1)
        time = jnp.concatenate([jnp.full(num_envs, newest), drawn])  # [N]
        copy = jnp.concatenate([jnp.arange(num_envs), jax.random.randint(copy_key, (count,), 0, num_envs)])
        slot = (time + jnp.arange(window)[:, None]) % sizes.slots  # [n, N]
        data = jax.tree.map(lambda rows: rows[slot, copy], state.data)
        index = time % sizes.slots * num_envs + copy
        return Batch(data, jnp.ones(batch_size, jnp.float32), index.astype(jnp.int32))

    return Replay(
        init=init,
        add=add,
        sample=sample,
        prioritise=lambda state, index, priority: state,  # all steps are equal
        min_steps=sizes.min_steps,
    )
