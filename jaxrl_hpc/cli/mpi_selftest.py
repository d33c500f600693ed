"""Test of the MPI features that the package needs, run on every rank by `doctor`.

Rank 0 prints one JSON object per line: {"step": …, "ok": …, "text": …}. A launcher that does not belong to
the MPI library starts every process as rank 0 of 1, so the expected size is an argument.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from jaxrl_hpc.comm.rma.selftest import examine


def _allreduce(comm: Any) -> str:
    import jax
    import jax.numpy as jnp
    import mpi4jax
    from mpi4py import MPI

    rank, size = comm.Get_rank(), comm.Get_size()

    @jax.jit
    def summed(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, lambda _, v: mpi4jax.allreduce(v, op=MPI.SUM, comm=comm) / size, x)

    result = float(summed(jnp.full(8, rank + 1.0))[0])
    if result != (size + 1) / 2:
        raise RuntimeError(f"the mean over ranks is {result} instead of {(size + 1) / 2}")
    return f"mpi4jax {mpi4jax.__version__} allreduce inside jit"


def _window(comm: Any) -> str:
    verdict = examine(comm)
    if not verdict.works:
        raise RuntimeError(verdict.text)
    return f"one-sided memory: {verdict.text}"


def _start(expected: int) -> tuple[Any, str]:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    library = " ".join(MPI.Get_library_version().splitlines()[0].strip("\0").split())
    if comm.Get_size() != expected:
        raise RuntimeError(f"{comm.Get_size()} of {expected} processes in the job, with {library}")
    return comm, f"{expected} ranks, {library}"


def _steps(expected: int) -> Iterator[tuple[str, bool, str]]:
    comm: Any = None

    def attempt(name: str, function: Callable[[], str]) -> tuple[str, bool, str]:
        try:
            return name, True, function()
        except Exception as error:  # any error is a result of the test
            return name, False, f"{type(error).__name__}: {error}"

    def start() -> str:
        nonlocal comm
        comm, text = _start(expected)
        return text

    yield attempt("ranks", start)
    if comm is not None:
        yield attempt("allreduce", lambda: _allreduce(comm))
        yield attempt("window", lambda: _window(comm))


def main(expected: int) -> int:
    good = True
    for name, ok, text in _steps(expected):
        good = good and ok
        if not ok or _is_first():
            # one write: print makes two of it if Python does not buffer, and ranks share the pipe
            sys.stdout.write(json.dumps({"step": name, "ok": ok, "text": text}) + "\n")
            sys.stdout.flush()
        if not ok:
            break  # other ranks may wait in the step that failed: the launcher ends them
    return 0 if good else 1


def _is_first() -> bool:
    from mpi4py import MPI

    return MPI.COMM_WORLD.Get_rank() == 0


if __name__ == "__main__":
    status = main(int(sys.argv[1]))
    if status:
        import os

        os._exit(status)  # MPI's own clean-up could wait for the others for ever
