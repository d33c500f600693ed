"""Leaves of a run state as host arrays and back: plain arrays, typed keys, rings."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.ops import tree_layout
from jaxrl_hpc.types import PyTree, Ring


class Signature(NamedTuple):
    """Signature of a leaf, which must be equal to restore it. `key` names the generator of a typed key."""

    shape: tuple[int, ...]  # of the key data for keys
    dtype: str
    key: str | None


def is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct) and jnp.issubdtype(
        leaf.dtype, jax.dtypes.prng_key
    )


def signature(leaf: Any) -> Signature:
    """Signature of an array, a typed key, a scalar or a ShapeDtypeStruct of these."""
    shape, dtype, key = tree_layout.signature(leaf)
    return Signature(shape, dtype.name, key)


def to_host(leaf: Any) -> np.ndarray:
    """The values as a NumPy array: on CPU a view of the same memory."""
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def from_host(array: np.ndarray, key: str | None) -> Any:
    return jax.random.wrap_key_data(jnp.asarray(array), impl=key) if key else array


def empty(signature_: Signature) -> np.ndarray:
    """Zeros: pages that are never touched cost no memory."""
    return np.zeros(signature_.shape, jnp.dtype(signature_.dtype))


def split(tree: PyTree) -> tuple[dict[str, Any], dict[str, Ring]]:
    """Plain leaves and rings by path."""
    pairs, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: isinstance(node, Ring))
    named = {jax.tree_util.keystr(path): node for path, node in pairs}
    if len(named) != len(pairs):
        raise ValueError("two leaves of the run state have the same path")
    rings = {path: node for path, node in named.items() if isinstance(node, Ring)}
    return {path: node for path, node in named.items() if path not in rings}, rings


def ring_leaves(ring: Ring) -> dict[str, Any]:
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(ring.data)}


def full_paths(tree: PyTree) -> tuple[list[str], Any]:
    """Paths of all leaves, also those inside rings, in order, and the structure."""
    pairs, structure = jax.tree_util.tree_flatten_with_path(tree)
    return [jax.tree_util.keystr(path) for path, _ in pairs], structure


def check_match(found: dict[str, Signature], like: PyTree, where: str) -> None:
    """Refuse a checkpoint of another structure, naming the first leaf that differs."""
    fix = "resume with the config the run was started with"
    pairs, _ = jax.tree_util.tree_flatten_with_path(like)
    wanted = {jax.tree_util.keystr(path): signature(leaf) for path, leaf in pairs}
    for path, expected in wanted.items():
        if path not in found:
            raise UserError(f"{where} has no state{path}: {fix}")
        if found[path] != expected:
            raise UserError(f"{where}: state{path} is {_text(found[path])}, not {_text(expected)}: {fix}")
    for path in found:
        if path not in wanted:
            raise UserError(f"{where} has state{path}, which this run does not have: {fix}")


def state_bytes(tree: PyTree) -> int:
    """Memory of all leaves: arrays, keys or ShapeDtypeStructs of them."""
    signatures = [signature(leaf) for leaf in jax.tree.leaves(tree)]
    return sum(int(np.prod(s.shape, dtype=np.int64)) * jnp.dtype(s.dtype).itemsize for s in signatures)


def _text(s: Signature) -> str:
    return f"{'key ' + s.key + ' ' if s.key else ''}{s.dtype}{list(s.shape)}"
