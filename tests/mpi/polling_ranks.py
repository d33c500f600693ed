"""On every rank: polling collectives beside mpi4jax's; rank 0 tells what is the same."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import mpi4jax
import numpy as np
from mpi4py import MPI

from jaxrl_hpc.comm import polling
from jaxrl_hpc.comm.collectives import ordered_sum
from tests.telling import tell

SIZES = (1, 1000, 5001, 100_003)  # one message for all; parts, with and without padding


def main() -> None:
    comm = MPI.COMM_WORLD.Clone()
    rank, ranks = comm.Get_rank(), comm.Get_size()
    assert polling.problem() is None, polling.problem()
    same: dict[str, bool] = {}
    for size in SIZES:
        scale = 10.0 ** jax.random.randint(jax.random.key(rank + 100), (size,), -6, 6)
        x = jax.random.normal(jax.random.key(rank), (size,)) * scale
        words = jax.lax.bitcast_convert_type(x, jnp.uint32)

        def looped(one, x=x):
            """Three times, with a collective of mpi4jax in between: both keep their order."""

            def body(_, y):
                known = mpi4jax.bcast(y, 0, comm=comm)
                return one(y) / ranks + 0.5 * known

            return jax.jit(lambda x: jax.lax.fori_loop(0, 3, body, x))(x)

        pairs = {
            "ordered_sum": (
                looped(lambda y: polling.ordered_sum(y, comm)),
                looped(lambda y: ordered_sum(mpi4jax.allgather(y, comm=comm))),
            ),
            "gather": (
                jax.jit(lambda x: polling.gather(x, comm))(words),
                jax.jit(lambda x: mpi4jax.allgather(x, comm=comm))(words),
            ),
            "total": (
                jax.jit(lambda x: polling.total(x, comm))(words),
                jax.jit(lambda x: mpi4jax.allreduce(x, op=MPI.SUM, comm=comm))(words),
            ),
            "from_first": (
                jax.jit(lambda x: polling.from_first(x, comm))(words),
                jax.jit(lambda x: mpi4jax.bcast(x, 0, comm=comm))(words),
            ),
        }
        for name, (mine, theirs) in pairs.items():
            same[f"{name} {size}"] = bool(np.array_equal(np.asarray(mine), np.asarray(theirs)))
    everywhere = comm.allgather(same)
    if rank == 0:
        waited = polling.waited()
        tell({"same": everywhere, "cpu_within": waited.cpu_seconds <= waited.seconds + 0.01})


if __name__ == "__main__":
    main()
