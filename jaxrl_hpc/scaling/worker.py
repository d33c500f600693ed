"""What every rank of a scaling measurement runs; rank 0 prints one JSON object.

    mpiexec -n N python -m jaxrl_hpc.scaling.worker '{"config": …, "seconds": 2.0}'

Times chunks of iterations, then collectives alone: inside a compiled loop (mpi4jax, as the workflow uses
them) and by the MPI library itself (mpi4py, in place).
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc import config as configs
from jaxrl_hpc.comm.ranks import Ranks, world
from jaxrl_hpc.runtime import machine
from jaxrl_hpc.runtime.build import build
from jaxrl_hpc.runtime.train import lanes_of, make_runner
from jaxrl_hpc.workflows.sharded.workflow import Sharded

SIZES = (8, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)  # bytes of an allreduce
CHUNKS = 12  # that one measurement is divided into


def time_iterations(runner: Any, ranks: Ranks, seconds: float) -> dict[str, Any]:
    """Seconds of an iteration, chunk by chunk, the same number of iterations on all ranks."""
    runner.metrics_per_lane(runner.step(2))  # the host-driven layout compiles here
    start = time.perf_counter()
    runner.metrics_per_lane(runner.step(2))
    one = (time.perf_counter() - start) / 2
    count = ranks.share(max(1, int(seconds / CHUNKS / one)))
    times = []
    for _ in range(CHUNKS):
        ranks.barrier()
        start = time.perf_counter()
        runner.metrics_per_lane(runner.step(count))
        times.append((time.perf_counter() - start) / count)
    return {"iterations": count, "seconds": times}


def time_inside(ranks: Ranks, size: int) -> float:
    """Seconds of an allreduce inside a compiled loop."""
    import mpi4jax
    from mpi4py import MPI

    count = int(np.clip(2e7 / (size + 2e4), 20, 1000))

    @jax.jit
    def loop(x: jax.Array) -> jax.Array:
        def body(_: Any, x: jax.Array) -> jax.Array:
            return mpi4jax.allreduce(x, op=MPI.SUM, comm=ranks.programs) * np.float32(1 / ranks.size)

        return jax.lax.fori_loop(0, count, body, x)

    vector = jnp.ones(max(1, size // 4), jnp.float32)
    jax.block_until_ready(loop(vector))
    times = []
    for _ in range(5):
        ranks.barrier()
        start = time.perf_counter()
        jax.block_until_ready(loop(vector))
        times.append((time.perf_counter() - start) / count)
    return float(np.median(times))


def time_raw(ranks: Ranks, size: int) -> float:
    """Seconds of an allreduce by the library itself."""
    from mpi4py import MPI

    count = int(np.clip(2e7 / (size + 2e4), 20, 1000))
    vector = np.ones(max(1, size // 4), np.float32)
    times = []
    for _ in range(5):
        ranks.barrier()
        start = time.perf_counter()
        for _ in range(count):
            ranks.programs.Allreduce(MPI.IN_PLACE, vector, op=MPI.SUM)
            vector *= np.float32(1 / ranks.size)
        times.append((time.perf_counter() - start) / count)
    return float(np.median(times))


def main() -> None:
    request = json.loads(sys.argv[1])
    ranks = world()
    with ranks.guard():
        config = configs.from_dict(request["config"])
        machine.prepare(config, 1)
        parts = build(config)
        runner = make_runner(config, parts, lanes_of(config))
        runner.initialise()
        _, messages = cast(Sharded, parts.workflow).dry_run(runner.states[0])
        result: dict[str, Any] = {
            "place": runner.describe(),
            "steps_per_iteration": parts.workflow.steps_per_iteration,
            "messages": [message._asdict() for message in messages],
            **time_iterations(runner, ranks, request["seconds"]),
        }
        if ranks.size > 1 and request["collectives"]:
            result["inside"] = {str(size): time_inside(ranks, size) for size in SIZES}
            result["raw"] = {str(size): time_raw(ranks, size) for size in SIZES}
        if ranks.first:
            print("\n" + json.dumps(result), flush=True)
        ranks.barrier()


if __name__ == "__main__":
    main()
