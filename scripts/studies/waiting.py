"""What it costs to wait for other ranks: mpi4jax, which spins, beside polling collectives (comm/polling.py).

    python scripts/studies/waiting.py latency       a core per rank: microseconds by size of the message
    python scripts/studies/waiting.py uneven        ranks = 4 × cores, one of them late: CPU time of all
    python scripts/studies/waiting.py jobs          async with 1 and 2 learners; a job that mostly waits
    python scripts/studies/waiting.py --page        write docs/results/waiting.md from its JSON

Each part takes a few minutes and replaces what docs/results/waiting.json has of it. Variants alternate in
rounds, so that a busy machine slows all of them alike.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl_hpc.bench.interleave import machine_facts
from jaxrl_hpc.cli.doctor_checks import find_mpiexec
from jaxrl_hpc.runs.directory import code_version
from jaxrl_hpc.runtime.machine import available_cores

ROOT = Path(__file__).resolve().parents[2]
DATA, PAGE = (ROOT / "docs" / "results" / f"waiting.{kind}" for kind in ("json", "md"))
SIZES = (8, 1_024, 16_384, 131_072, 1_048_576, 10_485_760)  # bytes
LATENCY_ROUNDS, JOB_ROUNDS = 5, 3
LATE_SECONDS, UNEVEN_TIMES = 0.02, 100
SPIN_FOREVER = 10**9  # microseconds


def variants(comm: Any) -> dict[str, Callable[[Any, int], Any]]:
    """Name -> so many means over ranks of a vector, in a program; mpi4py's on the host."""
    import jax
    import mpi4jax
    from mpi4py import MPI

    from jaxrl_hpc.comm import polling
    from jaxrl_hpc.comm.collectives import ordered_sum

    ranks = comm.Get_size()

    def looped(one: Callable[[Any], Any]) -> Callable[[Any, int], Any]:
        """So many sums, one after the other, in one program: without the call of a program for each."""
        return jax.jit(lambda x, times: jax.lax.fori_loop(0, times, lambda _, y: one(y) / ranks, x))

    def polled(operation: Any, spin: int) -> Callable[[Any, int], Any]:
        return looped(lambda x: polling._bind(x, operation, comm, spin))

    def on_host(x: Any, times: int) -> Any:
        mine, out = np.array(x), np.empty_like(x)
        for _ in range(times):
            comm.Allreduce(mine, out)
            np.divide(out, ranks, out=mine)
        return out

    return {
        "mpi4py": on_host,
        "mpi4jax allreduce": looped(lambda x: mpi4jax.allreduce(x, op=MPI.SUM, comm=comm)),
        "mpi4jax allgather, added in order": looped(lambda x: ordered_sum(mpi4jax.allgather(x, comm=comm))),
        "polling sum": polled("sum", polling.SPIN_MICROSECONDS),
        "polling ordered sum": polled("ordered_sum", polling.SPIN_MICROSECONDS),
        "polling ordered sum, always spinning": polled("ordered_sum", SPIN_FOREVER),
    }


def latency_on_ranks() -> list[dict[str, Any]]:
    import jax
    import jax.numpy as jnp
    from mpi4py import MPI

    comm, rows = MPI.COMM_WORLD.Clone(), []
    functions = variants(comm)
    for size in SIZES:
        x = jnp.arange(size // 4, dtype=jnp.float32)
        times = max(5, min(1000, 20_000_000 // size))
        for function in functions.values():
            jax.block_until_ready(function(x, 1))
        for number in range(LATENCY_ROUNDS):
            for name, function in functions.items():
                comm.Barrier()
                begin = time.perf_counter()
                jax.block_until_ready(function(x, times))
                seconds = (time.perf_counter() - begin) / times
                rows.append({"bytes": size, "variant": name, "round": number, "seconds": seconds})
    return rows


def uneven_on_ranks() -> list[dict[str, Any]]:
    """All ranks wait for rank 0, which sleeps before every sum."""
    import jax
    import jax.numpy as jnp
    from mpi4py import MPI

    comm, rows = MPI.COMM_WORLD.Clone(), []
    x = jnp.arange(5_000, dtype=jnp.float32)
    functions = {n: f for n, f in variants(comm).items() if n != "polling sum"}
    for function in functions.values():
        jax.block_until_ready(function(x, 1))
    for name, function in functions.items():
        comm.Barrier()
        begin, busy = time.perf_counter(), time.process_time()
        for _ in range(UNEVEN_TIMES):
            if comm.Get_rank() == 0:
                time.sleep(LATE_SECONDS)
            jax.block_until_ready(function(x, 1))
        busy, seconds = time.process_time() - busy, time.perf_counter() - begin
        total = comm.allreduce(busy)
        rows.append({"variant": name, "seconds": seconds, "cpu_seconds": total, "ranks": comm.Get_size()})
    return rows


JOBS: dict[str, list[str]] = {  # a job that learns as fast as two cores allow; one that mostly waits
    "speed": ["run.step_seconds=0.002", "run.total_env_steps=60_000"],
    "mostly waiting": ["run.step_seconds=0.05", "run.update_seconds=0.02", "run.total_env_steps=16_000"],
}


def job_on_ranks(kind: str, learners: int, waiting: str) -> list[dict[str, Any]]:
    """A run of `async`. CPU time while a rank waits is measured where it polls; the rest is work."""
    from jaxrl_hpc import config as configs
    from jaxrl_hpc.comm import polling
    from jaxrl_hpc.comm import waiting as host
    from jaxrl_hpc.comm.ranks import world
    from jaxrl_hpc.metrics.parquet import read_metrics
    from jaxrl_hpc.runtime.train import train
    from jaxrl_hpc.workflows.actor_learner import actor, mailbox

    polled = {"begun": 0.0, "cpu": 0.0}

    class Measured(host.Backoff):
        def pause(self) -> None:
            if not self.waiting:
                polled["begun"] = time.process_time()
            super().pause()

        def reset(self) -> None:
            if self.waiting:
                polled["cpu"] += time.process_time() - polled["begun"]
            super().reset()

    actor.Backoff = mailbox.Backoff = Measured  # type: ignore[misc]
    marks: list[float] = []
    step = actor.Actor.act

    def act(self: Any) -> None:
        if self.state.sequence == 3:  # all is compiled
            marks[:] = [time.process_time(), polled["cpu"]]
        step(self)

    actor.Actor.act = act  # type: ignore[method-assign]
    words = ["name=async", "num_envs=8", "unroll_length=16", f"learners={learners}", f"waiting={waiting}"]
    config = configs.load(
        "cartpole_a2c",
        [*(f"workflow.{w}" for w in words), *JOBS[kind], "agent.vtrace=true", "run.log_every=2560",
         "run.eval_every=0", "run.final_eval_episodes=8", "run.tensorboard=false"],
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as shared:
        folder = Path(world().share(shared)) / "run"
        before = time.process_time()
        from jaxrl_hpc.workflows.actor_learner.runtime import ActorLearner

        plain = ActorLearner.step

        def measured_step(self: Any, state: Any, iterations: int) -> Any:
            if not marks:
                marks[:] = [time.process_time(), polled["cpu"] + polling.waited().cpu_seconds]
            return plain(self, state, iterations)

        closed: list[float] = []
        close = ActorLearner.close

        def measured_close(self: Any, finished: bool) -> None:
            closed[:] = [time.process_time(), polled["cpu"] + polling.waited().cpu_seconds]
            close(self, finished)

        ActorLearner.step, ActorLearner.close = measured_step, measured_close  # type: ignore[method-assign]
        train(config, folder, say=lambda _: None)
        end = closed or [time.process_time(), polled["cpu"]]
        begin = marks or [before, 0.0]
        cpu = world().add(np.array([end[0] - begin[0], end[1] - begin[1]]))
        rows = read_metrics(folder).to_pylist() if world().first else []
        world().barrier()
    rows = [row for row in rows if row["kind"] == "train"]
    if not rows:
        return []
    first, last = rows[max(1, len(rows) // 5) - 1], rows[-1]
    speed = (last["env_steps"] - first["env_steps"]) / (last["wall_seconds"] - first["wall_seconds"])
    return [
        {
            "kind": kind,
            "learners": learners,
            "actors": world().size - learners,
            "waiting": waiting,
            "steps_per_second": speed,
            "cpu_seconds": float(cpu[0]),
            "waiting_cpu_seconds": float(cpu[1]),
        }
    ]


def on_ranks(ranks: int, *words: str) -> list[dict[str, Any]]:
    command = [str(find_mpiexec()), "-n", str(ranks), sys.executable, __file__, "--ranks", *words]
    settings = {"JAX_PLATFORMS": "cpu", "NPROC": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **settings}, check=False
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("[{")]
    if done.returncode or not found:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
    rows: list[dict[str, Any]] = json.loads(found[0])
    return rows


def measure(part: str) -> list[dict[str, Any]]:
    cores = available_cores()
    if part == "latency":
        return on_ranks(cores, part)
    if part == "uneven":
        return on_ranks(4 * cores, part)
    rows = []
    for _ in range(JOB_ROUNDS):
        for learners, waiting in ((1, "spin"), (1, "sleep"), (2, "spin"), (2, "sleep")):
            rows += on_ranks(learners + 8, "job", "speed", str(learners), waiting)
    for waiting in ("spin", "sleep"):
        rows += on_ranks(4 * cores, "job", "mostly waiting", "2", waiting)
    return rows


def latency_table(rows: list[dict[str, Any]]) -> list[str]:
    names = list(dict.fromkeys(row["variant"] for row in rows))
    lines = ["| bytes | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for size in SIZES:
        cells = []
        for name in names:
            values = [r["seconds"] for r in rows if (r["bytes"], r["variant"]) == (size, name)]
            cells.append(f"{np.median(values) * 1e6:,.0f}")
        lines.append(f"| {size:,} | " + " | ".join(cells) + " |")
    return lines


def uneven_table(rows: list[dict[str, Any]], cores: int) -> list[str]:
    lines = ["| sum over ranks | seconds | CPU seconds of all ranks | cores kept busy |", "|---|---|---|---|"]
    for row in rows:
        busy = row["cpu_seconds"] / row["seconds"]
        numbers = f"{row['seconds']:.2f} | {row['cpu_seconds']:.2f} | {busy:.2f} of {cores}"
        lines.append(f"| {row['variant']} | {numbers} |")
    return lines


def jobs_tables(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| learners + actors | waiting | steps/s, median (rounds) | × 1 learner, same waiting |"]
    lines += ["|---|---|---|---|"]
    speeds = {
        key: [
            r["steps_per_second"] for r in rows if (r["kind"], r["learners"], r["waiting"]) == ("speed", *key)
        ]
        for key in ((1, "spin"), (2, "spin"), (1, "sleep"), (2, "sleep"))
    }
    for (learners, waiting), values in speeds.items():
        all_rounds = ", ".join(f"{v:,.0f}" for v in values)
        ratio = np.median(values) / np.median(speeds[1, waiting])
        lines.append(
            f"| {learners} + 8 | {waiting} | {np.median(values):,.0f} ({all_rounds}) | {ratio:.2f} |"
        )
    lines += ["", "A job whose ranks mostly wait (steps of 50 ms, updates of 20 ms):", ""]
    lines += [
        "| learners + actors | waiting | CPU seconds | of them waiting | × work |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        if row["kind"] == "speed":
            continue
        cpu, waited = row["cpu_seconds"], row["waiting_cpu_seconds"]
        shape = f"{row['learners']} + {row['actors']}"
        known = row["waiting"] == "sleep"  # mpi4jax does not tell what it spends on waiting
        told = f"{waited:.2f} | {cpu / (cpu - waited):.2f}" if known else "– | –"
        lines.append(f"| {shape} | {row['waiting']} | {cpu:.2f} | {told} |")
    return lines


def page(data: dict[str, Any]) -> str:
    cores = data["machine"]["cores"] if "cores" in data["machine"] else available_cores()
    text = ["# What waiting costs", "", "Made by `python scripts/studies/waiting.py`.", ""]
    if "latency" in data:
        text += [f"## A core per rank ({cores} ranks)", ""]
        text += ["Microseconds of a mean over ranks, many of them in one program; medians of "]
        text[-1] += f"{LATENCY_ROUNDS} rounds in which the variants alternate."
        text += ["", *latency_table(data["latency"]["rows"]), ""]
    if "uneven" in data:
        rows = data["uneven"]["rows"]
        text += [f"## One of {rows[0]['ranks']} ranks is late", ""]
        text += [
            f"Rank 0 sleeps for {LATE_SECONDS * 1e3:.0f} ms before each of {UNEVEN_TIMES} sums of 5,000 "
            f"numbers; the others wait for it, on {cores} cores."
        ]
        text += ["", *uneven_table(rows, cores), ""]
    if "jobs" in data:
        text += ["## Whole jobs", "", "`async`, A2C on CartPole, steps that sleep for 2 ms:", ""]
        text += [*jobs_tables(data["jobs"]["rows"]), ""]
    return "\n".join(text)


def main() -> None:
    words = sys.argv[1:]
    if words[:1] == ["--ranks"]:
        part = words[1]
        if part == "job":
            rows = job_on_ranks(words[2], int(words[3]), words[4])
        else:
            rows = latency_on_ranks() if part == "latency" else uneven_on_ranks()
        from jaxrl_hpc.comm.ranks import world

        if world().first:
            print("\n" + json.dumps(rows), flush=True)
        return
    data = json.loads(DATA.read_text()) if DATA.exists() else {}
    if words and words[0] in ("latency", "uneven", "jobs"):
        data["machine"] = machine_facts()
        data[words[0]] = {"code": code_version(), "rows": measure(words[0])}
        DATA.write_text(json.dumps(data, indent=1) + "\n")
    elif words != ["--page"]:
        raise SystemExit(__doc__)
    PAGE.write_text(page(data))


if __name__ == "__main__":
    main()
