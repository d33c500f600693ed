"""A K-ary sum tree in one flat float32 array: exact, without drift, in place under donation.

TreeLayout: the leaves first, then the sums of every K leaves, then the sums of every K of those, up to a
level of at most K nodes. The K children of a node are contiguous, every level starts on a cache line
and is padded with zeros, so the capacity may be any number.

    parent = halves(children),  halves(c) = halves(c[:K/2] + c[K/2:]),  halves([x]) = x

Parents are always recomputed from their children, never corrected by differences: after any number of
updates the tree equals one built afresh, bit for bit (sums of differences drift in float32).

Sampling inverts the cumulative distribution. A draw is a fraction u of 52 random bits. At a node with
children c and prefix sums P (in float64, in order),

    t = u·P[K-1],  j = #{k : P[k] <= t},  u <- (t - P[j-1]) / (P[j] - P[j-1])

and the descent continues in child j with the fraction that remains. Rescaling at every level keeps the
float32 rounding of inner sums out of the probabilities, and 52 bits reach every positive leaf (a
float32 uniform has 23 bits and misses about 2 % of 2^20 skewed leaves). P[j-1] <= t < P[j] holds by
construction, so a leaf of priority zero is never returned.

Priorities live in {0} ∪ [MIN_PRIORITY, MAX_PRIORITY]; zero means empty. Paper: Schaul et al. 2016,
"Prioritized experience replay"; the K-ary tree: Zhang et al. 2021, PALRL.
"""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.random import threefry_2x32

from jaxrl_hpc.types import Array

MIN_PRIORITY = 1e-30
MAX_PRIORITY = 1e30
CACHE_LINE = 16  # float32 numbers
DRAW_BITS = 52
_WORD_BITS = DRAW_BITS // 2  # a draw is two words; the upper 26 bits of each count
_BELOW_ONE = 1.0 - 2.0**-DRAW_BITS


class TreeLayout(NamedTuple):
    """The static shape of a tree. Level 0 holds the leaves; hashable."""

    capacity: int
    fanout: int
    counts: tuple[int, ...]  # nodes in use per level
    offsets: tuple[int, ...]  # where a level starts in the flat array

    @property
    def size(self) -> int:
        return self.offsets[-1] + _padded(self.counts[-1], self.fanout)


def _padded(count: int, fanout: int) -> int:
    unit = max(fanout, CACHE_LINE)
    return -(-count // unit) * unit


def layout(capacity: int, fanout: int) -> TreeLayout:
    """The layout for any capacity >= 1 and a fan-out that is a power of two from 2 to 64."""
    if fanout not in (2, 4, 8, 16, 32, 64):
        raise ValueError(f"fanout is {fanout}: use one of 2, 4, 8, 16, 32, 64")
    if not 1 <= capacity < 2**30:
        raise ValueError(f"capacity is {capacity}: use at least 1 and less than 2^30")
    counts, offsets = [capacity], [0]
    while counts[-1] > fanout:
        offsets.append(offsets[-1] + _padded(counts[-1], fanout))
        counts.append(-(-counts[-1] // fanout))
    return TreeLayout(capacity, fanout, tuple(counts), tuple(offsets))


def clip(priority: Array) -> Array:
    """Clip to the range of positive priorities; NaN becomes the smallest."""
    inside = jnp.minimum(priority, MAX_PRIORITY)
    return jnp.where(priority >= MIN_PRIORITY, inside, MIN_PRIORITY).astype(jnp.float32)


def empty(shape: TreeLayout) -> Array:
    return jnp.zeros(shape.size, jnp.float32)


def leaves(shape: TreeLayout, tree: Array) -> Array:
    """All priorities [capacity]."""
    return tree[: shape.capacity]


def count(shape: TreeLayout, tree: Array) -> Array:
    """How many leaves have a priority, [] int32; by blocks, so that nothing as large as the tree is made."""
    block = min(4096, shape.capacity)

    def one(i: Array, total: Array) -> Array:
        first = jnp.minimum(i * block, shape.capacity - block)
        values = lax.dynamic_slice(tree, (first,), (block,))
        new = first + jnp.arange(block, dtype=jnp.int32) >= i * block  # the last block overlaps
        return total + jnp.sum((values > 0) & new, dtype=jnp.int32)

    total: Array = lax.fori_loop(0, -(-shape.capacity // block), one, jnp.int32(0))
    return total


def build(shape: TreeLayout, priorities: Array) -> Array:
    """A tree from its leaves [capacity]; equal, bit for bit, to the one that updates led to."""
    chex.assert_shape(priorities, (shape.capacity,))
    levels = []
    values = priorities.astype(jnp.float32)
    for level, count in enumerate(shape.counts):
        if level > 0:
            values = halves(values.reshape(-1, shape.fanout))[:count]
        values = jnp.pad(values, (0, _padded(count, shape.fanout) - count))
        levels.append(values)
    return jnp.concatenate(levels)


def halves(children: Array) -> Array:
    """The sum over the last axis in the one order that every implementation uses."""
    while children.shape[-1] > 1:
        middle = children.shape[-1] // 2
        children = children[..., :middle] + children[..., middle:]
    return children[..., 0]


def total(shape: TreeLayout, tree: Array) -> Array:
    """The sum of all priorities. Not for use beside updates inside a loop: XLA would copy the tree."""
    top = shape.offsets[-1]
    return halves(tree[top : top + shape.fanout])


def seed(key: Array) -> Array:
    """The two words [2] that all draws of one sample come from. Consumes key."""
    if jax.random.key_impl(key) == "threefry2x32":
        return jax.random.key_data(key)
    return jax.random.bits(key, (2,), jnp.uint32)


def draw(words: Array, number: int, stratified: bool) -> Array:
    """Draws [number, 2] for `find`: Threefry of the counters (0, i) under the seed.

    Stratified: draw i is scaled into the i-th of `number` equal parts.
    """
    chex.assert_shape(words, (2,))
    counters = jnp.concatenate([jnp.zeros(number, jnp.uint32), lax.iota(jnp.uint32, number)])
    words = threefry_2x32(words, counters).reshape(2, number).T
    if not stratified:
        return words
    with jax.enable_x64(True):
        part = lax.iota(jnp.float64, number)
        return to_words((part + to_fraction(words)) / float(number))


def to_fraction(words: Array) -> Array:
    """Draws [N, 2] as float64 fractions [N] in [0, 1). Call with x64 enabled. Every step is exact."""
    spare = jnp.uint32(32 - _WORD_BITS)
    high = lax.convert_element_type(words[:, 0] >> spare, jnp.float64)
    low = lax.convert_element_type(words[:, 1] >> spare, jnp.float64)
    return (high * 2.0**_WORD_BITS + low) * 2.0**-DRAW_BITS


def to_words(fraction: Array) -> Array:
    """The inverse of `to_fraction`, rounding down; fractions of 1 become the largest draw."""
    scaled = lax.min(fraction, jnp.float64(_BELOW_ONE)) * 2.0**_WORD_BITS
    high = lax.floor(scaled)
    low = lax.floor((scaled - high) * 2.0**_WORD_BITS)
    words = jnp.stack([high, low], axis=1)
    upper: Array = lax.convert_element_type(words, jnp.uint32) << jnp.uint32(32 - _WORD_BITS)
    return upper


def prefix_sums(values: Array) -> Array:
    """Inclusive prefix sums over the last axis: those of the right half stand on the left half's last.

    Rounding is monotone in this order, and adding zero changes nothing, so an empty child has exactly
    the prefix of the one before it.
    """
    width = values.shape[-1]
    if width == 1:
        return values
    left, right = prefix_sums(values[..., : width // 2]), prefix_sums(values[..., width // 2 :])
    return jnp.concatenate([left, left[..., -1:] + right], axis=-1)


def choose(children: Array, fraction: Array) -> tuple[Array, Array]:
    """One step of the descent: (child [N] int32, what remains [N]) of children [N, K], float64.

    Call with x64 enabled. A node without mass gives its last child: `find` reports mass zero then.
    """
    prefix = prefix_sums(lax.convert_element_type(children, jnp.float64))
    # Clearing two bits keeps compilers from fusing the product into the subtraction below (FMA),
    # which would round differently from one platform to the next.
    product = lax.bitcast_convert_type(fraction * prefix[:, -1], jnp.uint64) & jnp.uint64(2**64 - 4)
    target = lax.bitcast_convert_type(product, jnp.float64)
    inner, whole = prefix[:, :-1], prefix[:, -1:]
    passed = inner <= target[:, None]
    child = jnp.sum(passed, axis=1, dtype=jnp.int32)
    below = jnp.max(jnp.where(passed, inner, 0.0), axis=1)
    above = jnp.min(jnp.where(passed, whole, inner), axis=1)
    width = above - below  # zero only where the node has no mass
    remains = (target - below) / jnp.where(width > 0, width, 1.0)
    return child, jnp.minimum(remains, _BELOW_ONE)


def find(shape: TreeLayout, tree: Array, words: Array) -> tuple[Array, Array]:
    """The leaves that draws [N, 2] fall on: (index [N] int32, priority [N]).

    An empty tree gives leaves of priority zero; otherwise every priority is positive.
    """
    chex.assert_shape(tree, (shape.size,))
    chex.assert_shape(words, (None, 2))
    chex.assert_type(words, jnp.uint32)
    lanes = jnp.arange(shape.fanout, dtype=jnp.int32)
    offsets, ends = jnp.array(shape.offsets, jnp.int32), jnp.array(shape.counts, jnp.int32) - 1

    def descend(step: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        node, fraction, _ = carry
        level = len(shape.counts) - 1 - step
        first = node * shape.fanout
        children = tree.at[offsets[level] + first[:, None] + lanes].get(mode="promise_in_bounds")
        child, fraction = choose(children, fraction)
        mass = jnp.sum(jnp.where(lanes == child[:, None], children, 0.0), axis=1)
        return jnp.minimum(first + child, ends[level]), fraction, mass  # beyond only in an empty tree

    with jax.enable_x64(True):
        # A loop, because XLA would fuse an unrolled descent and compute upper levels over and over; and
        # all reads are inside it, so that none is left for after an update, which would cost a copy.
        number = words.shape[0]
        start = (jnp.zeros(number, jnp.int32), to_fraction(words), jnp.zeros(number, jnp.float32))
        index, _, mass = lax.fori_loop(jnp.int32(0), jnp.int32(len(shape.counts)), descend, start)
    return index, mass


def sample(
    shape: TreeLayout, tree: Array, words: Array, number: int, stratified: bool
) -> tuple[Array, Array]:
    """`number` leaves drawn in proportion to their priorities: (index [N] int32, priority [N])."""
    return find(shape, tree, draw(words, number, stratified))


def update(shape: TreeLayout, tree: Array, index: Array, priority: Array, revive: bool = False) -> Array:
    """Set priorities [N] at index [N]. Of equal indices the largest priority wins.

    Indices outside the tree are ignored, and so are empty leaves unless `revive`: an item that was
    overwritten after it had been sampled is not revived. Priorities must be clipped or zero.
    """
    chex.assert_shape(tree, (shape.size,))
    chex.assert_rank(index, 1)
    chex.assert_equal_shape([index, priority])
    chex.assert_type(index, jnp.int32)
    inside = (index >= 0) & (index < shape.capacity)
    place = jnp.where(inside, index, 0)
    if not revive:
        inside &= tree.at[place].get(mode="promise_in_bounds") > 0
    target = jnp.where(inside, place, shape.size)  # out of bounds: dropped
    # Below every priority first, then the maximum. The first write takes its values from `priority`,
    # so that all reads which that came from are over: else XLA would keep a copy of the tree for them.
    tree = tree.at[target].set(-1.0 - priority, mode="drop")
    tree = tree.at[target].max(priority, mode="drop")
    return _refresh(shape, tree, place)


def assign(shape: TreeLayout, tree: Array, start: Array, priority: Array) -> Array:
    """Sets priorities [M], clipped or zero, of the leaves start, start + 1, …, around the end to leaf 0."""
    chex.assert_shape(tree, (shape.size,))
    chex.assert_rank([start, priority], [0, 1])
    if priority.shape[0] > shape.capacity:
        raise ValueError(f"assign: {priority.shape[0]} values for {shape.capacity} leaves")
    index = (start + jnp.arange(priority.shape[0], dtype=jnp.int32)) % shape.capacity
    tree = tree.at[index].set(priority, mode="promise_in_bounds", unique_indices=True)
    # Every K-th leaf of the range and its last one have all its ancestors; if it wraps, so do the
    # tree's own ends.
    ends = jnp.array([0, shape.capacity - 1], jnp.int32)
    touched = jnp.concatenate([index[:: shape.fanout], index[-1:], ends])
    return _refresh(shape, tree, touched)


def _refresh(shape: TreeLayout, tree: Array, index: Array) -> Array:
    """Recomputes all ancestors of leaves [N]; where ancestors coincide the same value is written."""
    lanes = jnp.arange(shape.fanout, dtype=jnp.int32)
    node = index
    for below, above in zip(shape.offsets[:-1], shape.offsets[1:], strict=True):
        node = node // shape.fanout
        children = tree.at[below + node[:, None] * shape.fanout + lanes].get(mode="promise_in_bounds")
        tree = tree.at[above + node].set(halves(children), mode="promise_in_bounds")
    return tree
