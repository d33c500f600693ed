"""One library on one piece of work, in a process of its own.

    python -m jaxrl_hpc.bench.worker LIBRARY CASE MODE

It builds, compiles and warms up, says so, and then runs for about as many seconds as each line of its
input asks for, answering {"seconds", "env_steps", "updates"}. So the one who asks can take turns between
libraries, each of them started as it is by default (or held to one core, MODE pinned).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple


class Work(NamedTuple):
    """A library, ready to run."""

    run: Callable[[int], None]  # so many chunks, waited for
    env_steps: int  # per chunk, of all seeds
    updates: int  # per chunk, of all seeds


def ours(case: Any) -> Work:
    """Through the same calls as `jaxrl-hpc train`, in chunks of the same size."""
    from jaxrl_hpc import config as configs
    from jaxrl_hpc.runtime import machine
    from jaxrl_hpc.runtime.build import build
    from jaxrl_hpc.runtime.train import lanes_of, make_runner
    from jaxrl_hpc.runtime.trainer import ChunkSchedule

    config = configs.from_dict(case.ours)
    lanes = lanes_of(config)
    machine.prepare(config, len(lanes))
    parts = build(config)
    runner = make_runner(config, parts, lanes)
    runner.compile()
    runner.initialise()
    chunk = ChunkSchedule.of(config, parts).chunk
    runner.step(chunk)
    before = runner.counters()
    runner.step(chunk)
    after = runner.counters()

    def run(chunks: int) -> None:
        for _ in range(chunks):
            runner.step(chunk)
        runner.wait()

    steps, updates = ((after[name] - before[name]) * len(lanes) for name in ("env_steps", "updates"))
    return Work(run, steps, updates)


class _FiveResults:
    """A gymnax 1.x environment as rejax 0.1.x expects it: one flag for the end of an episode."""

    def __init__(self, name: str):
        import gymnax

        self.env, self.default_params = gymnax.make(name)

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # asked for by copy before there is one
            raise AttributeError(name)
        return getattr(self.env, name)

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        obs, state, reward, terminated, truncated, info = self.env.step(key, state, action, params)
        return obs, state, reward, terminated | truncated, info


def rejax(case: Any) -> Work:
    """Its own training iterations in one compiled loop, without evaluation; seeds by vmap, as it advises."""
    import jax
    import rejax as library

    name, arguments = case.rejax
    algorithm = getattr(library, name).create(**{**arguments, "env": _FiveResults(arguments["env"])})
    per_iteration = algorithm.num_envs * getattr(algorithm, "num_steps", 1)
    updates = getattr(algorithm, "num_epochs", 1) * getattr(algorithm, "num_minibatches", 1)
    if name == "TD3":  # an iteration is one update of the policy
        per_iteration, updates = per_iteration * algorithm.policy_delay, updates * algorithm.policy_delay
    iterations = max(1, 2_000 // per_iteration)
    keys = jax.random.split(jax.random.key(0), case.seeds)
    state = jax.jit(jax.vmap(algorithm.init_state) if case.seeds > 1 else algorithm.init_state)(
        keys if case.seeds > 1 else keys[0]
    )

    def loop(state: Any) -> Any:
        step = jax.vmap(algorithm.train_iteration) if case.seeds > 1 else algorithm.train_iteration
        return jax.lax.fori_loop(0, iterations, lambda _, s: step(s), state)

    compiled = jax.jit(loop, donate_argnums=0).lower(state).compile()

    def run(chunks: int) -> None:
        nonlocal state
        for _ in range(chunks):
            state = compiled(state)
        jax.block_until_ready(state)

    run(1 + getattr(algorithm, "fill_buffer", 0) // (iterations * per_iteration))  # until it learns
    total = iterations * case.seeds
    return Work(run, per_iteration * total, updates * total)


LIBRARIES = {"ours": ours, "rejax": rejax}


def measure(work: Work, seconds: float, rate: float) -> dict[str, float]:
    """Run for about `seconds`, given chunks per second so far."""
    chunks = max(1, round(seconds * rate))
    start, busy = time.perf_counter(), time.process_time()
    work.run(chunks)
    elapsed = time.perf_counter() - start
    return {
        "seconds": elapsed,
        "cpu_seconds": time.process_time() - busy,
        "env_steps": chunks * work.env_steps,
        "updates": chunks * work.updates,
        "chunks": chunks,
    }


def main(library: str, case_name: str, mode: str) -> None:
    if mode == "pinned":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    from jaxrl_hpc.bench.cases import find

    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")  # whatever else is printed goes elsewhere
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(values: dict[str, Any]) -> None:
        print(json.dumps(values), file=answers, flush=True)

    work = LIBRARIES[library](find(case_name))
    work.run(1)
    rate = 1.0
    for _ in range(2):  # the second time with a good guess of the rate
        first = measure(work, 0.2, rate)
        rate = first["chunks"] / first["seconds"]
    answer({"ready": True})
    for line in sys.stdin:
        result = measure(work, float(line), rate)
        rate = result["chunks"] / result["seconds"]
        answer(result)


if __name__ == "__main__":
    main(*sys.argv[1:])
