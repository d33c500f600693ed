"""Trees as rows of 4-byte words inside compiled programs, in memory and in messages.

All numbers of a tree that have four or eight bytes are packed side by side into one row; narrower ones (uint8
frames, flags, halves) follow in their own width, four bytes to a word. A sample then reads one contiguous row
instead of one piece of every leaf, which is faster. Packing is a bit cast: values come back exactly. One lane
only, because XLA tends to repeat the update of a narrow second array inside the fusion that reads it, and
then copies the whole array. comm/buffers.py does the same on the host with bytes; ops/tree_layout.py
describes both.
"""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrl_hpc.ops.tree_layout import LeafLayout, leaf_layouts, place
from jaxrl_hpc.types import Array, PyTree, Ring


class RowLayout(NamedTuple):
    """The layout of a row for one kind of tree. Static and hashable."""

    leaves: tuple[LeafLayout, ...]
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
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), jnp.result_type(x)), example)
    leaves, treedef = leaf_layouts(shapes)
    wide, end = place((leaf for leaf in leaves if not _narrow(leaf)), 4)
    narrow, whole = place((leaf for leaf in leaves if _narrow(leaf)), 1, end)
    order = iter(wide), iter(narrow)
    placed = tuple(next(order[_narrow(leaf)]) for leaf in leaves)
    return RowLayout(placed, treedef, end // 4, whole - end)


def _narrow(leaf: LeafLayout) -> bool:
    """Whether its numbers lie among the bytes behind the words."""
    return bool(leaf.dtype.itemsize < 4)


def row_bytes(rows: RowLayout) -> int:
    return rows.width * 4


def pack(rows: RowLayout, tree: PyTree) -> dict[str, Array]:
    """Leaves [*lead, …] -> {lane: [*lead, width]}."""
    pieces: dict[bool, list[Array]] = {False: [], True: []}
    lead: tuple[int, ...] = ()
    for leaf, value in zip(rows.leaves, rows.treedef.flatten_up_to(tree), strict=True):
        if leaf.nbytes == 0:
            continue
        lead = value.shape[: value.ndim - len(leaf.shape)]
        chex.assert_shape(value, (*lead, *leaf.shape))
        value = value.astype(jnp.uint8 if leaf.dtype == np.bool_ else leaf.dtype)
        units = lax.bitcast_convert_type(value, jnp.uint8 if _narrow(leaf) else jnp.uint32)
        pieces[_narrow(leaf)].append(units.reshape(*lead, leaf.nbytes // (1 if _narrow(leaf) else 4)))
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
    values = []
    for leaf in rows.leaves:
        if leaf.nbytes == 0:
            values.append(jnp.zeros((*lead, *leaf.shape), leaf.dtype))
            continue
        source, begin, size = (narrow, 4 * rows.words, 1) if _narrow(leaf) else (row, 0, 4)
        start = (leaf.offset - begin) // size
        units = lax.slice_in_dim(source, start, start + leaf.nbytes // size, axis=-1)
        if leaf.dtype == np.bool_:
            values.append(units.reshape(*lead, *leaf.shape) != 0)
            continue
        ratio = leaf.dtype.itemsize // size
        units = units.reshape(*lead, *leaf.shape, *([ratio] if ratio > 1 else []))
        values.append(lax.bitcast_convert_type(units, leaf.dtype))
    return rows.treedef.unflatten(values)


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
