"""JAX's random numbers as one compiled call on CPUs: the same words, bit for bit, in a tenth of the time.

XLA runs the 20 rounds of Threefry-2x32 as a loop of small steps on CPUs, which costs a small agent up to a
tenth of its iteration. `install` gives JAX's primitive a new lowering for CPUs; keys and numbers stay the
same. Exported programs use plain operations, because the library may be missing where they are loaded.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry2x32_p
from jax.interpreters import mlir

from jaxrl_hpc.ops.ffi import register
from jaxrl_hpc.types import Array

LIBRARY = Path(__file__).with_name("libthreefry.so")
TARGET = "jaxrl_hpc_threefry"
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def compiled(key0: Array, key1: Array, count0: Array, count1: Array) -> list[Array]:
    """The hash of counters by keys, all uint32, by the library."""
    words = jnp.broadcast_arrays(key0, key1, count0, count1)
    shape = jax.ShapeDtypeStruct(words[0].shape, jnp.uint32)
    return list(jax.ffi.ffi_call(TARGET, (shape, shape))(*words))


def host_key(seed: int, *streams: int) -> Array:
    """`jax.random.fold_in(…, stream)` of `jax.random.key(seed)`, computed by NumPy: a program for each of
    these small steps takes longer to make than all that they compute."""
    words = [np.zeros(1, np.uint32), np.array([seed & 0xFFFFFFFF], np.uint32)]
    for stream in streams:
        count = np.array([stream & 0xFFFFFFFF], np.uint32)
        words = rounds(words[0], words[1], np.zeros(1, np.uint32), count)
    key: Array = jax.random.wrap_key_data(jnp.asarray(np.concatenate(words)), impl="threefry2x32")
    return key


def written_out(key0: Array, key1: Array, count0: Array, count1: Array) -> list[Array]:
    """The same in plain operations."""
    return rounds(key0, key1, count0, count1)


def rounds(key0: Any, key1: Any, count0: Any, count1: Any) -> list[Any]:
    """The hash itself, for arrays of JAX and of NumPy."""
    keys = (key0, key1, key0 ^ key1 ^ np.uint32(0x1BD11BDA))
    x0, x1 = count0 + key0, count1 + key1
    for group in range(5):
        for by in ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = ((x1 << np.uint32(by)) | (x1 >> np.uint32(32 - by))) ^ x0
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + keys[(group + 2) % 3] + np.uint32(group + 1)
    return [x0, x1]


@functools.cache
def install() -> bool:
    """Use the library for all programs lowered for CPUs from now on; False if it is missing."""
    if not register(LIBRARY, {TARGET: "Threefry"}):
        return False
    by_call = mlir.lower_fun(compiled, multiple_results=True)
    plainly = mlir.lower_fun(written_out, multiple_results=True)

    def lower(context: Any, *operands: Any) -> Any:
        exported = context.module_context.lowering_parameters.for_export
        return (plainly if exported else by_call)(context, *operands)

    mlir.register_lowering(threefry2x32_p, lower, platform="cpu")
    return True
