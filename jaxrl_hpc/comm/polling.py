"""Collectives inside compiled programs that release the core while they wait (CPU).

mpi4jax calls blocking functions of MPI, which spin: best where every rank has its own core, wasteful where
ranks share cores. These start the same collective without blocking and test for completion with backoff
(`polling.cc`). They carry mpi4jax's effect, so that all collectives of a program keep their order.

`ordered_sum` adds in order of rank: the bits of `allgather` followed by `collectives.ordered_sum`, with
2 / ranks of the data for large vectors.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.ffi import ffi_lowering
from jax.interpreters import mlir

from jaxrl_hpc.ops.ffi import register
from jaxrl_hpc.types import Array

LIBRARY = Path(__file__).with_name("libpolling.so")
TARGET = "jaxrl_hpc_polling_collective"
FUNCTIONS = ("MPI_Iallreduce", "MPI_Iallgather", "MPI_Ialltoall", "MPI_Ibcast", "MPI_Test")
SPIN_MICROSECONDS = 20  # before a rank yields; a context switch costs about as much
Operation = Literal["sum", "gather", "first", "ordered_sum"]
OPERATIONS: tuple[Operation, ...] = ("sum", "gather", "first", "ordered_sum")  # as in polling.cc


class _Library(ctypes.Structure):
    """The struct of polling.cc."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*FUNCTIONS, "in_place")),
        ("handle_bytes", ctypes.c_int64),
    )


@functools.cache
def problem() -> str | None:
    """Why these collectives cannot be used here, or None. Loads and registers them the first time."""
    if jax.default_backend() != "cpu":
        return f"they need CPUs, but this process computes on {jax.default_backend()}"
    if not register(LIBRARY, {TARGET: "PollingCollective"}):
        return f"{LIBRARY.name} was not compiled: install the package on a machine with a C++ compiler"
    try:
        from mpi4py import MPI

        found = ctypes.CDLL(MPI.__file__)  # finds the functions of the library that mpi4py is linked to
        addresses = [ctypes.cast(getattr(found, name), ctypes.c_void_p).value for name in FUNCTIONS]
        _primitive()
    except (ImportError, RuntimeError, OSError, AttributeError) as error:
        return f"MPI's functions are not found ({error})"
    given = _Library(*addresses, int(MPI.IN_PLACE) % 2**64, MPI._sizeof(MPI.Comm))
    ctypes.CDLL(str(LIBRARY)).PollingUse(ctypes.byref(given))
    return None


class Waited(NamedTuple):
    """Time that this process has spent inside collectives since its start."""

    seconds: float
    cpu_seconds: float  # of them on a core


def waited() -> Waited:
    """Waiting costs of polling collectives in this process."""
    if problem() is not None:
        return Waited(0.0, 0.0)
    library = ctypes.CDLL(str(LIBRARY))
    for function in (library.PollingWaited, library.PollingCpu):
        function.restype = ctypes.c_int64
    return Waited(library.PollingWaited() * 1e-9, library.PollingCpu() * 1e-9)


def total(x: Array, comm: Any) -> Array:
    """The sum over ranks, in an order of MPI's own."""
    return _bind(x, "sum", comm)


def gather(x: Array, comm: Any) -> Array:
    """[ranks, *x.shape]."""
    return _bind(x, "gather", comm)


def from_first(x: Array, comm: Any) -> Array:
    """The first rank's array."""
    return _bind(x, "first", comm)


def ordered_sum(x: Array, comm: Any) -> Array:
    """x_0 + x_1 + …, in order of rank; float32."""
    assert x.dtype == np.float32, x.dtype
    return _bind(x, "ordered_sum", comm)


def _bind(x: Array, operation: Operation, comm: Any, spin: int = SPIN_MICROSECONDS) -> Array:
    assert problem() is None, problem()
    if x.size > np.iinfo(np.int32).max:
        raise ValueError(f"a message of {x.size} numbers: MPI counts up to {np.iinfo(np.int32).max}")
    result: Array = _primitive().bind(
        x, operation=operation, comm=_handle(comm), ranks=int(comm.Get_size()), spin=spin
    )
    return result


def _handle(thing: Any) -> int:
    """An MPI object as a signed number, as mpi4jax gives it."""
    from mpi4py import MPI

    value = int(MPI._handleof(thing))
    return value - 2**64 if value >= 2**63 else value


@functools.cache
def _primitive() -> Primitive:
    """Created on first use: it needs mpi4jax's effect, and with it MPI."""
    from mpi4jax._src.jax_compat import abstract_token, get_token_effect, set_token_effect
    from mpi4jax._src.utils import ordered_effect
    from mpi4py import MPI

    primitive = Primitive("polling_collective")

    def shape(x: Any, *, operation: Operation, ranks: int, **_: Any) -> Any:
        lead = (ranks,) if operation == "gather" else ()
        return ShapedArray((*lead, *x.shape), x.dtype), {ordered_effect}

    def lower(ctx: Any, x: Any, *, operation: Operation, comm: int, ranks: int, spin: int) -> Any:
        token = get_token_effect(ctx, ordered_effect)
        with_token = ctx.replace(
            avals_in=(*ctx.avals_in, abstract_token), avals_out=(*ctx.avals_out, abstract_token)
        )
        in_place = {0: 0} if operation in ("sum", "first") else {}
        rule = ffi_lowering(TARGET, has_side_effect=True, operand_output_aliases=in_place)
        numbers = {
            "kind": OPERATIONS.index(operation),
            "comm": comm,
            "type": _handle(MPI.Datatype.fromcode(ctx.avals_in[0].dtype.char)),
            "op": _handle(MPI.SUM),
            "ranks": ranks,
            "spin": spin,
        }
        *results, token = rule(with_token, x, token, **{k: np.int64(v) for k, v in numbers.items()})
        set_token_effect(ctx, ordered_effect, token)
        return results

    primitive.def_impl(functools.partial(jax.interpreters.xla.apply_primitive, primitive))
    primitive.def_effectful_abstract_eval(shape)
    mlir.register_lowering(primitive, lower, platform="cpu")
    return primitive
