"""What a message between an actor and a learner costs, by each transport: two-sided, fetched, written.

    python scripts/studies/transports.py            measure on one host and, as root, over TCP; write the page
    python scripts/studies/transports.py --page     write docs/results/transports.md from its JSON

One learner and two actors that do nothing but communicate. Rounds of all transports alternate, so that a busy
machine slows all of them alike; medians over rounds are reported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from command_line import run_on_ranks  # beside this file

from jaxrl_hpc.cli.doctor_checks import find_mpiexec
from jaxrl_hpc.comm.rma.transport import RmaOptions, one_sided
from jaxrl_hpc.comm.roles import Roles
from jaxrl_hpc.comm.transport import BufferSizes, Transport
from jaxrl_hpc.comm.two_sided import TWO_SIDED
from jaxrl_hpc.comm.waiting import Backoff
from jaxrl_hpc.runs.directory import code_version
from jaxrl_hpc.runtime.machine import available_cores

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
TRANSPORTS: dict[str, Transport] = {
    "async": TWO_SIDED,
    "rma": one_sided(RmaOptions("actor")),
    "rma_queue": one_sided(RmaOptions("learner")),
}
MESSAGE_BYTES = (4_096, 65_536, 1_048_576)
PARAMS_BYTES, IN_FLIGHT, ACTORS, ROUNDS = 65_536, 2, 2, 5
STREAM_SECONDS, TURNS = 0.5, 60


def on_ranks() -> None:
    """What every rank does: streams, then turns, of all transports and sizes, over and over."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    roles = Roles(comm, comm.Get_rank(), 1, ACTORS, 1)
    rows = []
    for _ in range(ROUNDS):
        for size in MESSAGE_BYTES:
            for name, transport in TRANSPORTS.items():
                sizes = BufferSizes(size, PARAMS_BYTES, IN_FLIGHT)
                end = (transport.learner if roles.learns else transport.actor)(roles, sizes)
                comm.Barrier()
                found = learner(end, comm) if roles.learns else actor(end, sizes, comm, roles.number)
                end.close()
                rows.append({"transport": name, "bytes": size, **found})
    if roles.learns:
        print(json.dumps(rows), flush=True)


def learner(end: Any, comm: Any) -> dict[str, float]:
    count, backoff = 0, Backoff()
    begin, busy = time.perf_counter(), time.thread_time()
    while time.perf_counter() - begin < STREAM_SECONDS:
        found = len(end.drain(4))
        count += found
        if found:
            backoff.reset()
        else:
            backoff.pause()
    seconds, busy = time.perf_counter() - begin, time.thread_time() - busy
    comm.Barrier()
    while end.drain(1000):  # actors have stopped
        pass
    comm.Barrier()
    params, begin = np.zeros(PARAMS_BYTES, np.uint8), time.perf_counter()
    for version in range(1, TURNS + 1):
        end.publish(version, params.copy())
        while not end.drain(1):
            os.sched_yield()
    turn = (time.perf_counter() - begin) / TURNS
    comm.Barrier()
    return {"messages": count / seconds, "busy": busy / max(count, 1), "turn": turn}


def actor(end: Any, sizes: BufferSizes, comm: Any, number: int) -> dict[str, float]:
    message, backoff = np.zeros(sizes.message, np.uint8), Backoff()
    begin = time.perf_counter()
    while time.perf_counter() - begin < STREAM_SECONDS:
        if end.room():
            end.offer(message)
            backoff.reset()
        else:
            backoff.pause()
    comm.Barrier()
    comm.Barrier()
    for _ in range(TURNS if number == 0 else 0):  # one actor in turns with the learner
        while end.newest() is None:
            os.sched_yield()
        assert end.offer(message)
    comm.Barrier()
    return {}


def measure() -> dict[str, Any]:
    program = [sys.executable, __file__, "--ranks"]
    here = [str(find_mpiexec()), "-n", str(1 + ACTORS), *program]
    places = {"one host": here}
    if os.geteuid() == 0:
        places["three hosts over TCP"] = [str(ROOT / "scripts" / "mpi_hosts.sh"), str(1 + ACTORS), *program]
    settings = {"JAX_PLATFORMS": "cpu", "NPROC": "1", "MPIEXEC": str(find_mpiexec())}
    data: dict[str, Any] = {"code": code_version(), "cores": available_cores(), "places": {}}
    for place, command in places.items():
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, **settings}, check=True
        )
        data["places"][place] = json.loads(next(x for x in done.stdout.splitlines() if x.startswith("[")))
    return data


def table(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| unroll | transport | messages per second | learner's time a message | a turn |"]
    lines += ["|---|---|---|---|---|"]
    for size in MESSAGE_BYTES:
        for name in TRANSPORTS:
            chosen = [row for row in rows if (row["bytes"], row["transport"]) == (size, name)]
            rate, busy, turn = (np.median([r[key] for r in chosen]) for key in ("messages", "busy", "turn"))
            times = f"{busy * 1e6:,.0f} µs | {turn * 1e6:,.0f} µs"
            lines.append(f"| {size // 1024} KiB | `{name}` | {rate:,.0f} | {times} |")
    return lines


def page(data: dict[str, Any]) -> str:
    intro = f"""# Transports between actors and learners

Made by `python scripts/studies/transports.py`.

The cost of moving unrolls and parameters by two-sided messages (`async`), reads of the learner (`rma`) and
writes of the actor (`rma_queue`), without acting or learning.

One learner and {ACTORS} actors on {data["cores"]} cores, medians over {ROUNDS} rounds in
which the transports alternate: compare rows of a table, not tables. Messages per second: both actors offer
unrolls without pause, {IN_FLIGHT} in flight each. A turn: the learner publishes {PARAMS_BYTES // 1024} KiB of
parameters, an actor takes them and offers an unroll, the learner takes it. Over TCP each rank is in a network
namespace of its own, and windows have a progress thread per rank."""
    parts = [intro]
    for place, rows in data["places"].items():
        parts += [f"## {place[0].upper()}{place[1:]}", "\n".join(table(rows))]
    return "\n\n".join(parts) + "\n"


def write(data: dict[str, Any]) -> None:
    (RESULTS / "transports.md").write_text(page(data))


if __name__ == "__main__":
    run_on_ranks(__doc__, RESULTS / "transports.json", on_ranks, measure, write)
