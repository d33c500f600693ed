"""Trees as rows: one row of 4-byte words and one row of bytes, in memory and in messages.

All numbers of a tree that have four or eight bytes are packed side by side into `words` […, W]; narrower
ones (uint8 frames, flags, halves) into `bytes` […, Wb], in their own width. A sample then reads one or two
contiguous rows instead of one piece of every leaf, which is what memory is good at. Packing is a bit
cast: values come back exactly.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrl_hpc.types import Array, PyTree, Ring


class Field(NamedTuple):
    """Where one leaf lies in its row."""

    lane: str  # "words" or "bytes"
    start: int
    width: int  # in units of the lane
    shape: tuple[int, ...]
    dtype: Any  # np.dtype; its stubs do not know jax's


class Packing(NamedTuple):
    """The layout of a row for one kind of tree. Static and hashable."""

    fields: tuple[Field, ...]
    treedef: jax.tree_util.PyTreeDef
    widths: tuple[tuple[str, int], ...]  # lane -> units per row, lanes in use only


_LANES: dict[str, Any] = {"words": np.dtype(np.uint32), "bytes": np.dtype(np.uint8)}


def packing(example: PyTree) -> Packing:
    """The layout for trees whose leaves look like those of `example` (no leading axes)."""
    leaves, treedef = jax.tree.flatten(example)
    widths = {"words": 0, "bytes": 0}
    fields = []
    for leaf in leaves:
        shape, dtype = tuple(np.shape(leaf)), np.dtype(jnp.result_type(leaf))
        lane = "words" if dtype.itemsize >= 4 else "bytes"
        width = math.prod(shape) * dtype.itemsize // _LANES[lane].itemsize
        fields.append(Field(lane, widths[lane], width, shape, dtype))
        widths[lane] += width
    return Packing(tuple(fields), treedef, tuple((k, v) for k, v in widths.items() if v > 0))


def row_bytes(rows: Packing) -> int:
    return sum(width * _LANES[lane].itemsize for lane, width in rows.widths)


def pack(rows: Packing, tree: PyTree) -> dict[str, Array]:
    """Leaves [*lead, …] -> {lane: [*lead, width]}."""
    pieces: dict[str, list[Array]] = {lane: [] for lane, _ in rows.widths}
    for field, leaf in zip(rows.fields, rows.treedef.flatten_up_to(tree), strict=True):
        if field.width == 0:
            continue
        lead = leaf.shape[: leaf.ndim - len(field.shape)]
        chex.assert_shape(leaf, (*lead, *field.shape))
        leaf = leaf.astype(field.dtype)
        if field.dtype == np.bool_:
            leaf = leaf.astype(jnp.uint8)
        units = lax.bitcast_convert_type(leaf, _LANES[field.lane])
        pieces[field.lane].append(units.reshape(*lead, field.width))
    return {lane: jnp.concatenate(parts, axis=-1) for lane, parts in pieces.items()}


def unpack(rows: Packing, lanes: dict[str, Array]) -> PyTree:
    """{lane: [*lead, width]} -> leaves [*lead, …]; the inverse of `pack`."""
    lead = next(iter(lanes.values())).shape[:-1]
    leaves = []
    for field in rows.fields:
        if field.width == 0:
            leaves.append(jnp.zeros((*lead, *field.shape), field.dtype))
            continue
        units = lax.slice_in_dim(lanes[field.lane], field.start, field.start + field.width, axis=-1)
        if field.dtype == np.bool_:
            leaves.append(units.reshape(*lead, *field.shape) != 0)
            continue
        ratio = field.dtype.itemsize // _LANES[field.lane].itemsize
        units = units.reshape(*lead, *field.shape, *([ratio] if ratio > 1 else []))
        leaves.append(lax.bitcast_convert_type(units, field.dtype))
    return rows.treedef.unflatten(leaves)


def empty(rows: Packing, *lead: int) -> dict[str, Array]:
    """Lanes [*lead, width] of zeros."""
    return {lane: jnp.zeros((*lead, width), _LANES[lane]) for lane, width in rows.widths}


def append(ring: Ring, block: dict[str, Array]) -> Ring:
    """Writes lanes [T, …] at the head in one piece; the number of slots must be a multiple of T."""
    slots, steps = leading(ring.data), leading(block)
    if slots % steps:
        raise ValueError(f"an unroll of {steps} steps does not divide the ring of {slots} slots")
    head = ring.written % slots
    data = {
        lane: lax.dynamic_update_slice_in_dim(ring.data[lane], block[lane], head, axis=0) for lane in block
    }
    return Ring(data=data, written=ring.written + steps)


def gather(lanes: dict[str, Array], *place: Array) -> dict[str, Array]:
    """Rows at `place`, which must lie inside."""
    return {lane: data.at[place].get(mode="promise_in_bounds") for lane, data in lanes.items()}


def leading(lanes: dict[str, Array]) -> int:
    return next(iter(lanes.values())).shape[0]
