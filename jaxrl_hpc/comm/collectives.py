"""Collectives over shards, traced into the program: over its devices, or over ranks.

Every collective takes a tree whose leaves have a leading axis of local shards [L, …] and has three parts:

    local    over this device's shards, then over the devices of the program
    across   over ranks, if a program has one device and ranks are connected by MPI: mpi4jax, one message
             (polling.py where waiting ranks sleep)
    finish   from the message back to a tree

`add` is the sum over shards, one flattened vector of floats. When `deterministic`, all shards' vectors are
gathered and added in order of shard, which no layout can change; otherwise sums are hierarchical. `gather` is
the trees of all shards [S, …], bit for bit; `total` is the sum of unsigned integers, exact in any order.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from jaxrl_hpc.comm import polling, waiting
from jaxrl_hpc.comm.layout import DEVICE, Layout
from jaxrl_hpc.ops import row_packing
from jaxrl_hpc.ops.row_packing import from_words, to_words
from jaxrl_hpc.types import Array, PyTree

Kind = Literal["add", "gather", "total"]


class Collectives(NamedTuple):
    """The collectives of one layout."""

    layout: Layout
    comm: Any  # MPI communicator used by compiled programs, None with one rank
    deterministic: bool

    def __call__(self, kind: Kind, tree: PyTree) -> PyTree:
        """All three parts at once."""
        like = shape_of_one(tree)
        if not jax.tree.leaves(like):
            return like
        return self.finish(kind, self.across(kind, self.local(kind, tree)), like)

    def local(self, kind: Kind, tree: PyTree) -> Array:
        """[F] for sums, [local shards, F] where all parts are needed."""
        several = len(self.layout.program_devices) > 1
        if self._summed(kind):
            vector = _flat(kind, jax.tree.map(lambda x: x.sum(axis=0, dtype=x.dtype), tree))
            return lax.psum(vector, DEVICE) if several else vector
        vectors = jax.vmap(lambda one: _flat(kind, one))(tree)
        return lax.all_gather(vectors, DEVICE, tiled=True) if several else vectors

    def across(self, kind: Kind, vector: Array) -> Array:
        """[F] for sums, [S, F] or [1, F], their sum, where all parts are needed."""
        if self.comm is None or not vector.size:
            return vector
        if self._polls():
            return self._across_polling(kind, vector)
        import mpi4jax
        from mpi4py import MPI

        if self._summed(kind):
            total: Array = mpi4jax.allreduce(vector, op=MPI.SUM, comm=self.comm)
            return total
        everyone: Array = mpi4jax.allgather(vector, comm=self.comm)
        return everyone.reshape(self.layout.shards, -1)

    def _across_polling(self, kind: Kind, vector: Array) -> Array:
        if self._summed(kind):
            return polling.total(vector, self.comm)
        if kind == "add" and vector.shape[0] == 1 and vector.dtype == jnp.float32:  # one shard per rank
            return polling.ordered_sum(vector, self.comm)
        return polling.gather(vector, self.comm).reshape(self.layout.shards, -1)

    @staticmethod
    def _polls() -> bool:
        """Whether waiting ranks leave their cores to others; decided when a program is traced."""
        return waiting.chosen().programs_poll

    def finish(self, kind: Kind, vector: Array, like: PyTree) -> PyTree:
        if kind == "gather":
            return jax.vmap(lambda words: from_words(words, like))(vector)
        if not self._summed(kind):
            vector = ordered_sum(vector)
        leaves, structure = jax.tree.flatten(like)
        ends = np.cumsum([leaf.size for leaf in leaves])[:-1].tolist()
        parts = jnp.split(vector, ends)
        shaped = [p.reshape(s.shape).astype(s.dtype) for p, s in zip(parts, leaves, strict=True)]
        return jax.tree.unflatten(structure, shaped)

    def _summed(self, kind: Kind) -> bool:
        return kind == "total" or (kind == "add" and not self.deterministic)


def shape_of_one(tree: PyTree) -> PyTree:
    """Shapes of one shard's part of a tree with a leading axis of shards."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), tree)


def ordered_sum(terms: Array) -> Array:
    """terms[0] + terms[1] + …, in this order and no other.

    The loop's length is unknown to the compiler, so the code before and after it is compiled separately, as
    it is around a message between devices or ranks. Otherwise XLA would fuse them, and a product and a sum
    in one fusion are rounded once instead of twice.
    """
    sign = lax.bitcast_convert_type(terms.reshape(-1)[0], jnp.int32) < 0
    bit = sign.astype(jnp.int32)
    count = terms.shape[0] + bit * (bit - 1)  # + 0
    result: Array = lax.fori_loop(jnp.int32(1), count, lambda i, total: total + terms[i], terms[0])
    return result


def broadcast(collectives: Collectives | None, tree: PyTree | None, like: PyTree) -> PyTree:
    """The first rank's `tree`, bit for bit, on all ranks; the others give None. All know its shapes,
    `like`."""
    if collectives is None or collectives.comm is None:
        assert tree is not None
        return tree
    mine = jnp.zeros(row_packing.packing(like).width, jnp.uint32) if tree is None else to_words(tree)
    if collectives._polls():
        return from_words(polling.from_first(mine, collectives.comm), like)
    import mpi4jax

    return from_words(mpi4jax.bcast(mine, 0, comm=collectives.comm), like)


def _flat(kind: Kind, tree: PyTree) -> Array:
    return ravel_pytree(tree)[0] if kind != "gather" else to_words(tree)


def fingerprint(tree: PyTree) -> Array:
    """A number [] uint32 that changes with any bit of any one word of a tree of 4-byte numbers and flags.

    sum_i (2 i + 1) w_i modulo 2^32: an odd factor loses nothing of a difference.
    """
    leaves = [jnp.asarray(x) for x in jax.tree.leaves(tree)]
    leaves = [x.astype(jnp.uint32) if x.dtype.itemsize < 4 else x for x in leaves]
    words = jnp.concatenate([lax.bitcast_convert_type(x, jnp.uint32).reshape(-1) for x in leaves])
    factor = 2 * lax.iota(jnp.uint32, words.size) + 1
    return jnp.sum(words * factor, dtype=jnp.uint32)


def compare_replicas(layout: Layout, marks: np.ndarray) -> None:
    """Fingerprints [S] of the learner that computed with each shard must agree."""
    values, counts = np.unique(marks, return_counts=True)
    if len(values) == 1:
        return
    usual = values[counts == counts.max()]
    expected = marks[0] if marks[0] in usual else usual[0]
    per_device = layout.local // len(layout.devices)
    odd = {
        (layout.rank_of(int(s)), int(s) % layout.local // per_device)
        for s in np.flatnonzero(marks != expected)
    }
    where = ", ".join(f"rank {rank} device {device}" for rank, device in sorted(odd))
    usual_rank = layout.rank_of(int(np.argmax(marks == expected)))
    raise RuntimeError(
        f"the learners have diverged: {where} from rank {usual_rank}; "
        "a device computes wrongly or a program is not deterministic; resume from the last checkpoint"
    )
