"""Our side of `bench train`: one workload, in a separate process.

    python -m jaxrl_hpc.bench.worker WORK

WORK is the JSON of `bench.cases.Work`; peers/worker.py does the same for other libraries.
"""

from __future__ import annotations

import json
import sys

import numpy as np

from jaxrl_hpc.bench.cases import Work, our_config
from jaxrl_hpc.bench.peers.serve import Loop, serve


def make(work: Work) -> Loop:
    """Through the same calls as `jaxrl-hpc train`, in chunks of the same size."""
    from jaxrl_hpc import config as configs
    from jaxrl_hpc.runtime import machine
    from jaxrl_hpc.runtime.build import build
    from jaxrl_hpc.runtime.train import lanes_of, make_runner
    from jaxrl_hpc.runtime.trainer import ChunkSchedule

    config = configs.from_dict(our_config(work))
    lanes = lanes_of(config)
    machine.prepare(config, len(lanes))
    parts = build(config)
    runner = make_runner(config, parts, lanes)
    runner.compile()
    runner.initialise()
    chunk = ChunkSchedule.of(config, parts).chunk

    def run(chunks: int) -> None:
        for _ in range(chunks):
            runner.step(chunk)
        runner.wait()

    def counters() -> tuple[int, int]:
        found = runner.counters()
        return found["env_steps"] * len(lanes), found["updates"] * len(lanes)

    def evaluate() -> float:
        return float(np.mean([lane.returns.mean() for lane in runner.evaluate_many(64, -1)]))

    return Loop(run, counters, evaluate, runner.compile_seconds)


if __name__ == "__main__":
    text = sys.argv[-1]  # scripts/compare_checkouts.py puts in front what earlier versions want
    serve(lambda: make(Work(**json.loads(text))))
