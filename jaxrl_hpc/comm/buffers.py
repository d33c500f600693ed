"""A tree of arrays as one flat buffer of bytes on the host, for messages and windows: no pickling, no copy
when unpacked. ops/row_packing.py does the same inside compiled programs; ops/tree_layout.py describes both.

    layout = BufferLayout.of(jax.eval_shape(function, ...))   # or of a tree of arrays
    buffer = layout.empty()
    layout.pack(tree, buffer)
    tree = layout.unpack(buffer)                              # NumPy views into the buffer

Leaves are stored one after the other, each at a multiple of 64 bytes, typed keys as their data. Sender and
receiver must have the same layout, which `agree` checks at the start.

Views share the buffer's memory, and JAX may use aligned NumPy memory without copying it. To keep data, copy
it (`layout.unpack(buffer.copy())`) before the buffer is overwritten.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.ops.tree_layout import LeafLayout, leaf_layouts, place
from jaxrl_hpc.types import PyTree

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

ALIGNMENT = 64  # bytes: required by XLA for memory that it uses in place


class BufferLayout(NamedTuple):
    """The layout of one kind of tree."""

    leaves: tuple[LeafLayout, ...]
    structure: Any  # treedef; None: that of another rank
    nbytes: int  # of the buffer, a multiple of ALIGNMENT
    fingerprint: int  # 63 bits of a hash over paths, shapes and dtypes

    @staticmethod
    def of(tree: PyTree) -> BufferLayout:
        """The layout of trees like this one: arrays, typed keys, scalars or ShapeDtypeStructs of these."""
        leaves, structure = leaf_layouts(tree)
        leaves, nbytes = place(leaves, ALIGNMENT)
        text = "\n".join(leaf.describe() for leaf in leaves)
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return BufferLayout(tuple(leaves), structure, nbytes, int.from_bytes(digest, "little") >> 1)

    def empty(self) -> np.ndarray:
        """A buffer [nbytes] uint8, aligned; its content is undefined."""
        return aligned(self.nbytes)

    def pack(self, tree: PyTree, out: np.ndarray) -> None:
        """Copy a tree into a buffer; waits for arrays that are still being computed."""
        self._check_buffer(out)
        values = self.structure.flatten_up_to(tree)
        for leaf, value in zip(self.leaves, values, strict=True):
            array = np.asarray(jax.random.key_data(value) if leaf.key else value)
            if array.shape != leaf.shape or array.dtype != leaf.dtype:
                found = leaf._replace(shape=array.shape, dtype=array.dtype)
                raise ValueError(f"cannot pack {found.describe()}: the layout has {leaf.describe()}")
            np.copyto(_view(leaf, out), array)

    def unpack(self, buffer: np.ndarray) -> PyTree:
        """The tree as views into the buffer; typed keys are copies."""
        self._check_buffer(buffer)
        values = [_view(leaf, buffer) for leaf in self.leaves]
        whole = [
            jax.random.wrap_key_data(jnp.array(value), impl=leaf.key) if leaf.key else value
            for leaf, value in zip(self.leaves, values, strict=True)
        ]
        return jax.tree.unflatten(self.structure, whole)

    def describe(self) -> str:
        return "; ".join(leaf.describe() for leaf in self.leaves)

    def difference(self, other: BufferLayout) -> str | None:
        """The first leaf in which two layouts differ, None if they are the same."""
        for mine, theirs in zip(self.leaves, other.leaves, strict=False):
            if mine != theirs:
                return f"{mine.describe()} against {theirs.describe()}"
        if len(self.leaves) != len(other.leaves):
            return f"{len(self.leaves)} against {len(other.leaves)} arrays"
        return None

    def agree(self, comm: Intracomm, what: str) -> None:
        """Collective: all ranks have this layout, or all fail with one sentence."""
        everyone = comm.allgather((self.leaves, self.nbytes, self.fingerprint))
        first = BufferLayout(everyone[0][0], None, everyone[0][1], everyone[0][2])
        for rank, (leaves, nbytes, fingerprint) in enumerate(everyone):
            difference = first.difference(BufferLayout(leaves, None, nbytes, fingerprint))
            if difference:
                raise ValueError(
                    f"ranks 0 and {rank} disagree on {what}: {difference}; "
                    "all ranks must run the same config and version"
                )

    def _check_buffer(self, buffer: np.ndarray) -> None:
        if buffer.dtype != np.uint8 or buffer.shape != (self.nbytes,):
            raise ValueError(
                f"a buffer of uint8[{self.nbytes}] is needed, not {buffer.dtype}{list(buffer.shape)}"
            )


def aligned(nbytes: int) -> np.ndarray:
    """[nbytes] uint8 that begins at a multiple of ALIGNMENT."""
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    begin = -raw.ctypes.data % ALIGNMENT
    return raw[begin : begin + nbytes]


def _view(leaf: LeafLayout, buffer: np.ndarray) -> np.ndarray:
    data: np.ndarray = buffer[leaf.offset : leaf.offset + leaf.nbytes].view(leaf.dtype)
    return data.reshape(leaf.shape)
