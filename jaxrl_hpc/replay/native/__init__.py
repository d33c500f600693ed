"""The sum tree compiled for CPUs: loads the library and wraps its operations.

The operations work in place (their tree input and output share a buffer) and take leading batch axes,
so that `vmap` neither copies nor slices trees. Their results equal those of `sum_tree` bit for bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.ops.ffi import register
from jaxrl_hpc.replay.sum_tree import TreeLayout
from jaxrl_hpc.types import Array

LIBRARY = Path(__file__).with_name("libsum_tree.so")
_TARGETS = {
    "find": "SumTreeFind",
    "sample": "SumTreeSample",
    "update": "SumTreeUpdate",
    "assign": "SumTreeAssign",
}


@functools.cache
def available() -> bool:
    """Whether the library is available; loads and registers it the first time."""
    return register(LIBRARY, {_target(name): symbol for name, symbol in _TARGETS.items()})


def _target(name: str) -> str:
    return f"jaxrl_hpc_sum_tree_{name}"


def _attributes(shape: TreeLayout, simd: bool) -> dict[str, Any]:
    return {"capacity": np.int64(shape.capacity), "fanout": np.int64(shape.fanout), "simd": simd}


def find(shape: TreeLayout, tree: Array, words: Array, *, simd: bool = True) -> tuple[Array, Array]:
    """Same as `sum_tree.find`."""
    index, priority = _draw("find", words.shape[0])(tree, words, **_attributes(shape, simd))
    return index, priority


def sample(
    shape: TreeLayout, tree: Array, words: Array, number: int, stratified: bool, *, simd: bool = True
) -> tuple[Array, Array]:
    """Same as `sum_tree.sample`."""
    call = _draw("sample", number)
    index, priority = call(tree, words, stratified=stratified, **_attributes(shape, simd))
    return index, priority


def update(
    shape: TreeLayout, tree: Array, index: Array, priority: Array, revive: bool = False, *, simd: bool = True
) -> Array:
    """Same as `sum_tree.update`, for clipped priorities."""
    call = _in_place("update", tree)
    changed: Array = call(tree, index, priority, revive=revive, **_attributes(shape, simd))
    return changed


def assign(shape: TreeLayout, tree: Array, start: Array, priority: Array, *, simd: bool = True) -> Array:
    """Same as `sum_tree.assign`, for priorities that are zero or clipped."""
    changed: Array = _in_place("assign", tree)(tree, start, priority, **_attributes(shape, simd))
    return changed


def _draw(name: str, number: int) -> Callable[..., Any]:
    results = (jax.ShapeDtypeStruct((number,), jnp.int32), jax.ShapeDtypeStruct((number,), jnp.float32))
    return jax.ffi.ffi_call(_target(name), results, vmap_method="broadcast_all")


def _in_place(name: str, tree: Array) -> Callable[..., Any]:
    return jax.ffi.ffi_call(
        _target(name),
        jax.ShapeDtypeStruct(tree.shape, tree.dtype),
        vmap_method="broadcast_all",
        input_output_aliases={0: 0},
    )
