"""Layout of a tree's leaves in flat memory: paths, shapes, dtypes, offsets.

One description for the two codecs that move trees as raw memory. They differ in where they run:

    comm/buffers.py      on the host: NumPy bytes for messages and windows, unpacked as views without a copy
    ops/row_packing.py   inside compiled programs: rows of uint32 words, by bit casts, under any leading axes
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.types import PyTree


class LeafLayout(NamedTuple):
    """One array of the tree. Hashable."""

    path: str
    shape: tuple[int, ...]  # of the key data for typed keys
    dtype: Any  # np.dtype; its stubs do not know jax's
    key: str | None  # generator of a typed key
    offset: int = 0  # bytes from the beginning

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * int(self.dtype.itemsize)

    def describe(self) -> str:
        kind = f"key {self.key} " if self.key else ""
        return f"{self.path or 'the tree'} {kind}{self.dtype.name}{list(self.shape)}"


def leaf_layouts(tree: PyTree) -> tuple[list[LeafLayout], jax.tree_util.PyTreeDef]:
    """Leaves of trees like this one, all at offset 0: arrays, typed keys, scalars or ShapeDtypeStructs."""
    pairs, structure = jax.tree_util.tree_flatten_with_path(tree)
    return [LeafLayout(jax.tree_util.keystr(path), *signature(value)) for path, value in pairs], structure


def place(leaves: Iterable[LeafLayout], alignment: int, begin: int = 0) -> tuple[list[LeafLayout], int]:
    """Leaves one after the other from byte `begin` on, each rounded up to `alignment` -> (leaves, end)."""
    placed = []
    for leaf in leaves:
        placed.append(leaf._replace(offset=begin))
        begin += -(-leaf.nbytes // alignment) * alignment
    return placed, begin


def signature(value: Any) -> tuple[tuple[int, ...], np.dtype[Any], str | None]:
    """Shape and dtype of what is packed, and the generator of a typed key."""
    typed = hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    if not typed:
        value = value if hasattr(value, "dtype") else np.asarray(value)
        return tuple(value.shape), np.dtype(value.dtype), None
    names = []

    def data(key: jax.Array) -> jax.Array:
        names.append(str(jax.random.key_impl(key)))  # refuses a ShapeDtypeStruct, not a tracer
        return jax.random.key_data(key)

    words = jax.eval_shape(data, jax.ShapeDtypeStruct(value.shape, value.dtype))
    return tuple(words.shape), np.dtype(words.dtype), names[0]
