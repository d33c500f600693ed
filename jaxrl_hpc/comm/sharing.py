"""One rank's tree for all, inside a compiled program: as bytes, in one message."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrl_hpc.comm.collectives import Collectives
from jaxrl_hpc.types import Array, PyTree


def share(collectives: Collectives | None, tree: PyTree | None, shape: PyTree) -> PyTree:
    """The first rank's `tree`, bit for bit, on all ranks; the others give None. `shape` is known to all."""
    if collectives is None or collectives.comm is None:
        assert tree is not None
        return tree
    import mpi4jax

    size = sum(_width(leaf) for leaf in jax.tree.leaves(shape))
    mine = jnp.zeros(size, jnp.uint8) if tree is None else to_bytes(tree)
    return from_bytes(mpi4jax.bcast(mine, 0, comm=collectives.comm), shape)


def _width(leaf: jax.ShapeDtypeStruct) -> int:
    return int(np.prod(leaf.shape, dtype=np.int64)) * leaf.dtype.itemsize


def to_bytes(tree: PyTree) -> Array:
    """All leaves one after the other, [n] uint8."""

    def flat(leaf: Array) -> Array:
        if leaf.dtype == jnp.bool_:
            return leaf.astype(jnp.uint8).reshape(-1)
        return lax.bitcast_convert_type(leaf, jnp.uint8).reshape(-1)

    return jnp.concatenate([flat(leaf) for leaf in jax.tree.leaves(tree)])


def from_bytes(words: Array, shape: PyTree) -> PyTree:
    leaves, structure = jax.tree.flatten(shape)
    parts = jnp.split(words, np.cumsum([_width(leaf) for leaf in leaves])[:-1].tolist())

    def whole(part: Array, leaf: jax.ShapeDtypeStruct) -> Array:
        if leaf.dtype.itemsize == 1:
            return part.reshape(leaf.shape).astype(leaf.dtype)
        return lax.bitcast_convert_type(part.reshape(*leaf.shape, leaf.dtype.itemsize), leaf.dtype)

    return jax.tree.unflatten(structure, [whole(p, s) for p, s in zip(parts, leaves, strict=True)])
