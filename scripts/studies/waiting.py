"""What it costs to wait for other ranks: mpi4jax, which spins, beside polling collectives (comm/polling.py).

    python scripts/studies/waiting.py latency       a core per rank: microseconds by size of the message
    python scripts/studies/waiting.py uneven        ranks = 4 × cores, one of them late: CPU time of all
    python scripts/studies/waiting.py idle          ranks = 4 × cores, a job that mostly waits: CPU time
    python scripts/studies/waiting.py speed         async with 1 and 2 learners and 8 actors: steps per second
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
LATENCY_ROUNDS, SPEED_ROUNDS, IDLE_ROUNDS = 5, 3, 2
PARTS = ("latency", "uneven", "idle", "speed")
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
    functions = variants(comm)
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


JOBS: dict[str, list[str]] = {  # one that mostly waits; one that learns as fast as the cores allow
    "idle": ["run.step_seconds=0.05", "run.update_seconds=0.02", "run.log_every=512"],
    "speed": ["run.step_seconds=0.002", "run.log_every=2560"],
}
STEPS = {"idle": 2_500, "speed": 7_500}  # per actor


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
    marks: list[list[float]] = []  # CPU seconds, and those of waiting: between unrolls, between chunks
    step = actor.Actor.act

    def mark() -> None:
        marks.append([time.process_time(), polled["cpu"] + polling.waited().cpu_seconds])

    def act(self: Any) -> None:
        mark()
        step(self)

    actor.Actor.act = act  # type: ignore[method-assign]
    words = ["name=async", "num_envs=8", "unroll_length=16", f"learners={learners}", f"waiting={waiting}"]
    config = configs.load(
        "cartpole_a2c",
        [*(f"workflow.{w}" for w in words), *JOBS[kind], "agent.vtrace=true",
         f"run.total_env_steps={STEPS[kind] * (world().size - learners)}",
         "run.eval_every=0", "run.final_eval_episodes=8", "run.tensorboard=false"],
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as shared:
        folder = Path(world().share(shared)) / "run"
        from jaxrl_hpc.workflows.actor_learner.runtime import ActorLearner

        plain = ActorLearner.step

        def measured_step(self: Any, state: Any, iterations: int) -> Any:
            mark()
            return plain(self, state, iterations)

        ActorLearner.step = measured_step  # type: ignore[method-assign]
        train(config, folder, say=lambda _: None)
        begin, end = marks[2], marks[-1]  # programs are compiled before
        cpu = world().add(np.array(end) - begin)
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
    if part == "idle":
        return [
            row
            for _ in range(IDLE_ROUNDS)
            for waiting in ("spin", "sleep")
            for row in on_ranks(4 * cores, "job", part, "2", waiting)
        ]
    return [
        row
        for _ in range(SPEED_ROUNDS)
        for learners, waiting in ((1, "spin"), (1, "sleep"), (2, "spin"), (2, "sleep"))
        for row in on_ranks(learners + 8, "job", part, str(learners), waiting)
    ]


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


def speed_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| learners + actors | waiting | steps/s, median (rounds) | × 1 learner, same waiting |"]
    lines += ["|---|---|---|---|"]
    for learners, waiting in ((1, "spin"), (2, "spin"), (1, "sleep"), (2, "sleep")):
        values = [
            row["steps_per_second"]
            for row in rows
            if (row["learners"], row["waiting"]) == (learners, waiting)
        ]
        ratio = np.median(values) / median(rows, "steps_per_second", learners=1, waiting=waiting)
        rounds = ", ".join(f"{value:,.0f}" for value in values)
        lines.append(f"| {learners} + 8 | {waiting} | {np.median(values):,.0f} ({rounds}) | {ratio:.2f} |")
    return lines


def idle_factor(row: dict[str, Any]) -> float:
    return float(row["cpu_seconds"] / (row["cpu_seconds"] - row["waiting_cpu_seconds"]))


def idle_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| learners + actors | waiting | CPU seconds | of them waiting | × work |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        shape = f"{row['learners']} + {row['actors']}"
        told = "– | –"
        if row["waiting"] == "sleep":  # mpi4jax does not tell what it spends on waiting
            told = f"{row['waiting_cpu_seconds']:.2f} | {idle_factor(row):.2f}"
        lines.append(f"| {shape} | {row['waiting']} | {row['cpu_seconds']:.2f} | {told} |")
    return lines


def median(rows: list[dict[str, Any]], what: str, **same: Any) -> float:
    """Over the rows that have these values; NaN without any."""
    values = [row[what] for row in rows if all(row[name] == value for name, value in same.items())]
    return float(np.median(values)) if values else float("nan")


def backoff() -> list[float]:
    """How a sleeping rank polls: what is measured here."""
    from jaxrl_hpc.comm.waiting import PACES

    return list(PACES["sleep"])


def bars(data: dict[str, Any]) -> list[str]:
    """What was asked for beside what was measured."""
    latency, idle, speed = (data.get(part, {"rows": []})["rows"] for part in ("latency", "idle", "speed"))
    waits = [row for row in idle if row["waiting"] == "sleep"]
    slower = {
        theirs: [
            median(latency, "seconds", variant=ours, bytes=size)
            / median(latency, "seconds", variant=theirs, bytes=size)
            for size in SIZES
        ]
        for ours, theirs in (
            ("polling sum", "mpi4py"),
            ("polling sum", "mpi4jax allreduce"),
            ("polling ordered sum", "mpi4jax allgather, added in order"),
        )
    }
    lines = ["| bar | measured | verdict |", "|---|---|---|"]
    if waits:
        factor = max(idle_factor(row) for row in waits)
        ranks, cores = waits[0]["learners"] + waits[0]["actors"], data["idle"]["cores"]
        lines.append(
            f"| {ranks} ranks on {cores} core(s) that mostly wait use ≤ 1.3 × the CPU time of their work "
            f"| {factor:.2f} × with `sleep` | {'met' if factor <= 1.3 else 'missed'} |"
        )
    if speed:
        pairs = {
            waiting: median(speed, "steps_per_second", learners=2, waiting=waiting)
            / median(speed, "steps_per_second", learners=1, waiting=waiting)
            for waiting in ("spin", "sleep")
        }
        lines.append(
            f"| `async` 2 + 8 ≥ 0.95 × the steps/s of 1 + 8 on {data['speed']['cores']} cores "
            f"| {pairs['sleep']:.2f} × with `sleep`, {pairs['spin']:.2f} × with `spin` "
            f"| {'met' if pairs['sleep'] >= 0.95 else 'missed'} |"
        )
    else:
        lines.append("| `async` 2 + 8 ≥ 0.95 × the steps/s of 1 + 8 on 2 cores | not measured | – |")
    for theirs, ratios in slower.items():
        if not latency:
            lines.append(f"| polling no slower than {theirs}, a core per rank | not measured | – |")
            continue
        found = f"{min(ratios):.2f} to {max(ratios):.2f} × its time over sizes"
        lines.append(
            f"| polling no slower than {theirs}, a core per rank | {found} "
            f"| {'met' if max(ratios) <= 1.1 else 'missed at some sizes'} (10 % allowed) |"
        )
    return lines


def page(data: dict[str, Any]) -> str:
    text = [
        "# What waiting costs",
        "",
        "Made by `python scripts/studies/waiting.py`. mpi4jax's collectives, which spin while they wait, "
        "beside polling ones, which release the core "
        "([when each is used](../workflows.md#waiting-for-other-ranks)).",
        "",
        *bars(data),
        "",
        "With a core per rank `workflow.waiting: auto` chooses `spin`, that is mpi4jax: polling collectives "
        "are for ranks that share cores.",
        "",
    ]
    missing = [part for part in PARTS if part not in data]
    text += [f"Not measured: {', '.join(missing)}.", ""] if missing else []
    older = [part for part in PARTS if part in data and data[part].get("backoff") != backoff()]
    text += (
        [f"Not measured again since the backoff of sleeping ranks changed: {', '.join(older)}.", ""]
        if older
        else []
    )
    others = [data[part]["other_cores"] for part in PARTS if part in data]
    text += [f"Other work used up to {max(others):.1f} cores meanwhile.", ""] if others else []
    if "latency" in data:
        text += [f"## A core per rank ({data['latency']['cores']} ranks)", ""]
        text += ["Microseconds of a mean over ranks, many of them in one program; medians of "]
        text[-1] += f"{LATENCY_ROUNDS} rounds in which the variants alternate."
        text += ["", *latency_table(data["latency"]["rows"]), ""]
    if "uneven" in data:
        rows, cores = data["uneven"]["rows"], data["uneven"]["cores"]
        text += [f"## One of {rows[0]['ranks']} ranks is late", ""]
        text += [
            f"Rank 0 sleeps for {LATE_SECONDS * 1e3:.0f} ms before each of {UNEVEN_TIMES} sums of 5,000 "
            f"numbers; the others wait for it, on {cores} core(s)."
        ]
        text += ["", *uneven_table(rows, cores), ""]
    if "idle" in data:
        text += ["## A job that mostly waits", ""]
        text += ["`async`, A2C on CartPole, steps of 50 ms and updates of 20 ms that sleep, on "]
        text[-1] += f"{data['idle']['cores']} core(s)."
        text += ["", *idle_table(data["idle"]["rows"]), ""]
    if "speed" in data:
        text += ["## Two learners on shared cores", "", "The same with steps of 2 ms and plain updates, on "]
        text[-1] += f"{data['speed']['cores']} cores."
        text += ["", *speed_table(data["speed"]["rows"]), ""]
    commits = sorted({str(data[part]["code"]["commit"])[:10] for part in PARTS if part in data})
    text += [f"Commits: {', '.join(f'`{commit}`' for commit in commits)}.", ""]
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
    if words and words[0] in PARTS:
        from learners import other_seconds  # beside this file

        data["machine"] = machine_facts()
        begin, others = time.monotonic(), other_seconds()
        rows = measure(words[0])
        other_cores = (other_seconds() - others) / (time.monotonic() - begin)
        about = {"code": code_version(), "cores": available_cores(), "backoff": backoff()}
        data[words[0]] = about | {"other_cores": other_cores, "rows": rows}
        DATA.write_text(json.dumps(data, indent=1) + "\n")
    elif words != ["--page"]:
        raise SystemExit(__doc__)
    PAGE.write_text(page(data))


if __name__ == "__main__":
    main()
