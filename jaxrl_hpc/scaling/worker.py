"""The program of every process in a scaling measurement; the first of a job prints one JSON object.

    mpiexec -n N python -m jaxrl_hpc.scaling.worker '{"config": …, "seconds": 2.0}'

Times chunks of iterations and traces some more (trace.py); then times collectives alone: inside a compiled
loop, as in the workflow's engine, and by the MPI library itself (mpi4py, in place). With "wait": a separate
run that prints `ready` and starts on a line from stdin, so that several can be measured side by side.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import jax
import numpy as np

from jaxrl_hpc import config as configs
from jaxrl_hpc.comm.collectives import Collectives
from jaxrl_hpc.comm.distributed import gloo_lines_hidden
from jaxrl_hpc.comm.ranks import Ranks, world
from jaxrl_hpc.runtime import machine
from jaxrl_hpc.runtime.build import build
from jaxrl_hpc.runtime.train import lanes_of, make_runner
from jaxrl_hpc.scaling import trace
from jaxrl_hpc.workflows.sharded.execution import SAME, placed
from jaxrl_hpc.workflows.sharded.workflow import Sharded

SIZES = (8, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)  # bytes of an allreduce
CHUNKS = 12  # parts of one measurement
TRACED_SECONDS = 0.3
SHORT_SECONDS, SHORT_CHUNKS = 2e-3, 200  # chunks about as short as the time between two collectives


def time_iterations(runner: Any, ranks: Ranks, seconds: float, wait: bool) -> dict[str, Any]:
    """Seconds of an iteration, chunk by chunk, the same number of iterations on all ranks; and of a core."""
    runner.metrics_per_lane(runner.step(2))
    start = time.perf_counter()
    runner.metrics_per_lane(runner.step(2))
    one = (time.perf_counter() - start) / 2
    count = ranks.share(max(1, int(seconds / CHUNKS / one)))
    if wait:
        print("ready", flush=True)
        count = int(sys.stdin.readline())
    times = []
    busy = time.process_time()
    for _ in range(CHUNKS):
        ranks.barrier()
        start = time.perf_counter()
        runner.metrics_per_lane(runner.step(count))
        times.append((time.perf_counter() - start) / count)
    busy = (time.process_time() - busy) / CHUNKS / count
    found = {"iterations": count, "seconds": times, "core_seconds": float(ranks.add(np.array([busy]))[0])}
    if wait:
        one = float(np.median(times))
        count = max(1, round(SHORT_SECONDS / one))
        # fewer where iterations are long
        chunks = int(np.clip(4 * seconds / (count * one), CHUNKS, SHORT_CHUNKS))
        found["short"] = time_short_chunks(runner, count, chunks)
    return found


def time_short_chunks(runner: Any, count: int, chunks: int) -> dict[str, Any]:
    """How much a worker's speed varies from one moment to the next, without waiting for any other."""
    times = []
    for _ in range(chunks):
        start = time.perf_counter()
        runner.metrics_per_lane(runner.step(count))
        times.append((time.perf_counter() - start) / count)
    return {"iterations": count, "seconds": times}


def trace_shares(runner: Any, ranks: Ranks, seconds: float) -> dict[str, float]:
    """What workers do in iterations of about so many seconds; and how long these are with recording."""
    count = ranks.share(int(np.clip(TRACED_SECONDS / seconds, 2, 200)))
    times = []

    def run() -> None:
        start = time.perf_counter()
        runner.metrics_per_lane(runner.step(count))
        times.append((time.perf_counter() - start) / count)

    ranks.barrier()
    own = trace.recorded(run)
    found = trace.shares([worker for part in ranks.gather(own) for worker in part])
    return found | {"milliseconds": 1e3 * times[0]}


def time_inside(flow: Sharded, ranks: Ranks, size: int) -> float:
    """Seconds of an allreduce inside a compiled loop, by the engine of the workflow."""
    count = int(np.clip(2e7 / (size + 2e4), 20, 1000))
    layout = flow.layout
    workers = layout.ranks * len(layout.devices)
    collectives = Collectives(layout, flow.collectives.comm, False)

    def loop(x: jax.Array) -> jax.Array:
        def body(_: Any, x: jax.Array) -> jax.Array:
            total: jax.Array = collectives("add", x[None])
            return total * np.float32(1 / workers)

        return jax.lax.fori_loop(0, count, body, x)

    program = placed(layout, loop, SAME, SAME)
    vector = layout.place(np.ones(max(1, size // 4), np.float32))
    program.compile(vector)
    ranks.barrier()
    jax.block_until_ready(program(vector))
    times = []
    for _ in range(5):
        ranks.barrier()
        start = time.perf_counter()
        jax.block_until_ready(program(vector))
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


def time_collectives(flow: Sharded, ranks: Ranks) -> dict[str, Any]:
    """Seconds of an allreduce by its bytes."""
    with gloo_lines_hidden():
        found = {"inside": {str(size): time_inside(flow, ranks, size) for size in SIZES}}
    if ranks.comm is not None:
        found["raw"] = {str(size): time_raw(ranks, size) for size in SIZES}
    return found


def main() -> None:
    request = json.loads(sys.argv[1])
    ranks = world()
    with ranks.guard():
        config = configs.from_dict(request["config"])
        machine.prepare(config, 1)
        parts = build(config)
        runner = make_runner(config, parts, lanes_of(config))
        flow = parts.workflow
        if flow.traceable:
            runner.compile()
        runner.initialise()
        result: dict[str, Any] = {
            "place": runner.describe(),
            "steps_per_iteration": flow.steps_per_iteration,
            **time_iterations(runner, ranks, request["seconds"], request.get("wait", False)),
        }
        if isinstance(flow, Sharded):
            _, messages = flow.dry_run(runner.states[0])
            result["messages"] = [message._asdict() for message in messages]
            if flow.layout.ranks * len(flow.layout.devices) > 1:
                result["trace"] = trace_shares(runner, ranks, float(np.median(result["seconds"])))
                if request["collectives"]:
                    result |= time_collectives(flow, ranks)
        if ranks.first:
            print("\n" + json.dumps(result), flush=True)
        ranks.barrier()


if __name__ == "__main__":
    main()
