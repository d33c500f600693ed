"""Sleeping inside compiled programs without occupying a core (CPU), to emulate work done elsewhere.

A foreign function instead of a host callback, so that programs with MPI inside may sleep too. Mapped over
(vmap), a pause sleeps once: for the longest of all, or for their sum.
"""

from __future__ import annotations

import functools
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.ops.ffi import register
from jaxrl_hpc.types import Array

LIBRARY = Path(__file__).with_name("libpause.so")
TARGET = "jaxrl_hpc_pause_sleep"


@functools.cache
def available() -> bool:
    """Whether the library is available; loads and registers it the first time."""
    return register(LIBRARY, {TARGET: "PauseSleep"})


def require(field: str) -> None:
    """Refuse a setting that sleeps where that is not possible."""
    if jax.default_backend() != "cpu":
        raise UserError(f"{field}: programs can sleep on CPUs only; set it to 0, or JAX_PLATFORMS=cpu")
    if not available():
        raise UserError(
            f"{field}: {LIBRARY.name} was not compiled; install the package on a machine with a C++ compiler"
        )


def sleep(seconds: Array, after: Array, *, in_turn: bool) -> Array:
    """Zero [], once the given seconds have passed since `after` was computed.

    Args:
      seconds: [] float32.
      after: any number []; the pause begins when it is there.
      in_turn: mapped pauses follow each other; else they happen at the same time.
    """
    # opaque to the compiler, and never NaN
    begin = jnp.asarray(seconds, jnp.float32) + jnp.where(after == after, 0.0, 1e-9)
    call = jax.ffi.ffi_call(
        TARGET,
        jax.ShapeDtypeStruct((), jnp.float32),
        has_side_effect=True,
        vmap_method="broadcast_all",
    )
    zero: Array = call(begin, in_turn=in_turn)
    return zero
