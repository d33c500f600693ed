"""Checkpoints of a sharded run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.checkpoint.sharded import ShardedCheckpointer
from jaxrl_hpc.comm.layout import Layout
from jaxrl_hpc.comm.ranks import Ranks
from jaxrl_hpc.types import Array, PyTree


class ShardStore:
    """Checkpoints by logical shard (checkpoint/sharded.py). A shard's part holds that shard of all seeds."""

    def __init__(self, layout: Layout, ranks: Ranks, directory: Path, keep: int) -> None:
        self.layout = layout
        self.numbers = range(layout.first, layout.first + layout.local)
        self._files = ShardedCheckpointer(directory, self.numbers, ranks, keep)

    def latest(self) -> int | None:
        return self._files.latest()

    def save(self, step: int, states: Sequence[PyTree], host: dict[str, Any]) -> None:
        shared = [jax.tree.map(lambda x: x.addressable_data(0), state.shared) for state in states]
        parts = {
            number: [part_of(self.layout, state.own, i) for state in states]
            for i, number in enumerate(self.numbers)
        }
        self._files.save(step, shared, parts, host)

    def restore(self, shapes: Sequence[PyTree]) -> tuple[int, list[PyTree], dict[str, Any]]:
        def one(x: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(x.shape[1:], x.dtype)

        shared = [state.shared for state in shapes]
        part = [jax.tree.map(one, state.own) for state in shapes]
        step, shared, parts, host = self._files.restore(shared, part)
        states = []
        for lane, like in enumerate(shapes):
            mine = [parts[number][lane] for number in self.numbers]
            own = jax.tree.map(lambda *leaves: stack(leaves), *mine)
            states.append(type(like)(shared[lane], own))
        return step, states, host


def stack(leaves: Sequence[Any]) -> Any:
    """NumPy arrays on the host, typed keys where they are."""
    return np.stack(leaves) if isinstance(leaves[0], np.ndarray) else jnp.stack(leaves)


def part_of(layout: Layout, own: PyTree, local: int) -> PyTree:
    """One shard's part, without its axis: on a CPU a view of the same memory."""
    device, place = divmod(local, layout.local // len(layout.devices))

    def take(leaf: Array) -> Any:
        data = leaf.addressable_data(device)
        plain = not jnp.issubdtype(data.dtype, jax.dtypes.prng_key)
        return np.asarray(data)[place] if plain and layout.devices[0].platform == "cpu" else data[place]

    return jax.tree.map(take, own)
