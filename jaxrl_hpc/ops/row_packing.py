"""Trees as rows of 4-byte words inside compiled programs, in memory and in messages.

All numbers of a tree that have four or eight bytes are packed side by side into one row; narrower ones
(uint8 frames, flags, halves) follow in their own width, four bytes to a word. A sample then reads one
contiguous row instead of one piece of every leaf, which is what memory is good at. RowLayout is a bit
cast: values come back exactly. One lane only, because XLA likes to repeat the update of a narrow second
array inside the fusion that reads it, and then has to copy the whole array.
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

    narrow: bool  # among the bytes behind the words
    start: int
    width: int  # in words, or in bytes where narrow
    shape: tuple[int, ...]
    dtype: Any  # np.dtype; its stubs do not know jax's


class RowLayout(NamedTuple):
    """The layout of a row for one kind of tree. Static and hashable."""

    fields: tuple[Field, ...]
    treedef: jax.tree_util.PyTreeDef
    words: int  # of leaves with four or more bytes
    narrow_bytes: int  # of the others, before filling up the last word

    @property
    def width(self) -> int:
        """Words of a row."""
        return self.words + -(-self.narrow_bytes // 4)

    @property
    def widths(self) -> tuple[tuple[str, int], ...]:
        """lane -> words per row; no lane for trees without content."""
        return ((LANE, self.width),) if self.width else ()


LANE = "words"


def packing(example: PyTree) -> RowLayout:
    """The layout for trees whose leaves look like those of `example` (no leading axes)."""
    leaves, treedef = jax.tree.flatten(example)
    used = {False: 0, True: 0}
    fields = []
    for leaf in leaves:
        shape, dtype = tuple(np.shape(leaf)), np.dtype(jnp.result_type(leaf))
        narrow = dtype.itemsize < 4
        width = math.prod(shape) * dtype.itemsize // (1 if narrow else 4)
        fields.append(Field(narrow, used[narrow], width, shape, dtype))
        used[narrow] += width
    return RowLayout(tuple(fields), treedef, used[False], used[True])


def row_bytes(rows: RowLayout) -> int:
    return rows.width * 4


def pack(rows: RowLayout, tree: PyTree) -> dict[str, Array]:
    """Leaves [*lead, …] -> {lane: [*lead, width]}."""
    pieces: dict[bool, list[Array]] = {False: [], True: []}
    lead: tuple[int, ...] = ()
    for field, leaf in zip(rows.fields, rows.treedef.flatten_up_to(tree), strict=True):
        if field.width == 0:
            continue
        lead = leaf.shape[: leaf.ndim - len(field.shape)]
        chex.assert_shape(leaf, (*lead, *field.shape))
        leaf = leaf.astype(jnp.uint8 if field.dtype == np.bool_ else field.dtype)
        units = lax.bitcast_convert_type(leaf, jnp.uint8 if field.narrow else jnp.uint32)
        pieces[field.narrow].append(units.reshape(*lead, field.width))
    parts = pieces[False]
    if pieces[True]:
        filling = jnp.zeros((*lead, -rows.narrow_bytes % 4), jnp.uint8)
        narrow = jnp.concatenate([*pieces[True], filling], axis=-1)
        parts = [*parts, lax.bitcast_convert_type(narrow.reshape(*lead, -1, 4), jnp.uint32)]
    return {LANE: jnp.concatenate(parts, axis=-1)} if parts else {}


def unpack(rows: RowLayout, lanes: dict[str, Array]) -> PyTree:
    """{lane: [*lead, width]} -> leaves [*lead, …]; the inverse of `pack`."""
    row = lanes[LANE]
    lead = row.shape[:-1]
    narrow = lax.bitcast_convert_type(row[..., rows.words :], jnp.uint8).reshape(*lead, -1)
    leaves = []
    for field in rows.fields:
        if field.width == 0:
            leaves.append(jnp.zeros((*lead, *field.shape), field.dtype))
            continue
        source, size = (narrow, 1) if field.narrow else (row, 4)
        units = lax.slice_in_dim(source, field.start, field.start + field.width, axis=-1)
        if field.dtype == np.bool_:
            leaves.append(units.reshape(*lead, *field.shape) != 0)
            continue
        ratio = field.dtype.itemsize // size
        units = units.reshape(*lead, *field.shape, *([ratio] if ratio > 1 else []))
        leaves.append(lax.bitcast_convert_type(units, field.dtype))
    return rows.treedef.unflatten(leaves)


def empty(rows: RowLayout, *lead: int) -> dict[str, Array]:
    """Lanes [*lead, width] of zeros."""
    return {lane: jnp.zeros((*lead, width), jnp.uint32) for lane, width in rows.widths}


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


def to_words(tree: PyTree) -> Array:
    """A whole tree as one row [width] uint32."""
    return pack(packing(tree), tree).get(LANE, jnp.zeros(0, jnp.uint32))


def from_words(words: Array, like: PyTree) -> PyTree:
    """The inverse of `to_words`; `like` has shapes and dtypes."""
    rows = packing(like)
    return unpack(rows, {LANE: words})
