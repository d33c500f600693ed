"""How often do learners collide that read actors' windows at random?

    python scripts/studies/window_collisions.py           simulate, measure on ranks, write the page (3 min)
    python scripts/studies/window_collisions.py --page    write docs/results/window_collisions.* from its JSON

Learners copy an unroll from a ring drawn at random and then claim it; a claim that fails because another
learner was faster is a collision: the copy is discarded (jaxrl_hpc/comm/rma/ring.py). With `range` selection
there are none. EXARL found by simulation that collisions are significant from learners = 25 % of actors on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from command_line import run_on_ranks  # beside this file
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from jaxrl_hpc.cli.doctor_checks import find_mpiexec
from jaxrl_hpc.comm.rma.ring import RingQueue
from jaxrl_hpc.comm.rma.window import Window
from jaxrl_hpc.report.style import MATPLOTLIB, MUTED, REFERENCE, color, legend_under
from jaxrl_hpc.runs.directory import code_version
from jaxrl_hpc.runtime.machine import available_cores
from jaxrl_hpc.scaling.events import Process, Simulation

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
SHARES = (1.0, 0.5, 0.1)  # of a learner's time that it spends copying unrolls
ACTORS = (16, 64, 256)  # simulated
WINDOWS, LEARNERS, PRODUCERS = 16, (1, 2, 4, 8), 2  # measured
COPY_SECONDS, MEASURE_SECONDS, CAPACITY, NBYTES = 0.004, 4.0, 32, 256
SIMULATED_COPIES = 15_000


def meet(learners: float, actors: float) -> float:
    """Learners that all draw at once: the chance of one to meet another at its window."""
    return 1 - (1 - 1 / actors) ** (learners - 1)


def in_vain(learners: float, actors: float) -> float:
    """Discarded copies (share) of learners that all draw at once: one of those that meet gets the item."""
    return 1 - actors * (1 - (1 - 1 / actors) ** learners) / learners


def simulate(learners: int, actors: int, share: float, seed: int = 0) -> float:
    """The share of discarded copies when learners draw independently and no ring is ever empty."""
    simulation, rng = Simulation(), np.random.default_rng(seed)
    heads, counts = np.zeros(actors, np.int64), {"taken": 0, "collisions": 0}

    def learner() -> Process:
        yield float(rng.random())  # not all at once
        while True:
            ring = int(rng.integers(actors))
            seen = heads[ring]
            yield 1.0  # copies
            if heads[ring] != seen:
                counts["collisions"] += 1
                continue
            heads[ring] += 1
            counts["taken"] += 1
            yield float(rng.exponential((1 - share) / share))  # learns
            if counts["taken"] >= SIMULATED_COPIES:
                simulation.halt()

    for _ in range(learners):
        simulation.start(learner())
    simulation.run()
    return counts["collisions"] / (counts["taken"] + counts["collisions"])


class SlowWindow(Window):
    """A window whose contents take a while to arrive, as over a network, without keeping a core busy."""

    def read(self, rank: int, offset: int, out: np.ndarray) -> None:
        time.sleep(COPY_SECONDS)
        super().read(rank, offset, out)


def on_ranks() -> None:
    """What every rank of the measurement does: the first ones learn, the last ones keep all rings filled."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rank, most = comm.Get_rank(), max(LEARNERS)
    each, room = WINDOWS // PRODUCERS, RingQueue.nbytes(CAPACITY, NBYTES)
    results = []
    for share in SHARES:
        for learners in LEARNERS:
            window = SlowWindow(comm, each * room, "shared")
            owners = [most + ring // each for ring in range(WINDOWS)]
            rings = [
                RingQueue(window, owners[i], i % each * room, CAPACITY, NBYTES, "reject")
                for i in range(WINDOWS)
            ]
            window.barrier()
            end = time.monotonic() + MEASURE_SECONDS
            if rank >= most:
                produce([ring for ring in rings if ring.owner == rank], end)
            elif rank < learners:
                consume(rings, share, end, np.random.default_rng([rank, learners]))
            window.barrier()
            mine = [sum(ring.counts[name] for ring in rings) for name in ("taken", "collisions")]
            taken, collisions = comm.allreduce(np.array(mine)).tolist()
            results.append({"learners": learners, "share": share, "taken": taken, "collisions": collisions})
            window.free()
    if rank == 0:
        print(json.dumps(results), flush=True)


def produce(rings: list[RingQueue], end: float) -> None:
    data = np.zeros(NBYTES, np.uint8)
    while time.monotonic() < end:
        for ring in rings:
            while ring.depth() < ring.capacity:
                ring.push(data)
        time.sleep(0.002)


def consume(rings: list[RingQueue], share: float, end: float, rng: np.random.Generator) -> None:
    while time.monotonic() < end:
        ring = rings[int(rng.integers(len(rings)))]
        if ring.take() is not None:
            time.sleep(float(rng.exponential(COPY_SECONDS * (1 - share) / share)))


def measure() -> dict[str, Any]:
    command = [str(find_mpiexec()), "-n", str(max(LEARNERS) + PRODUCERS), sys.executable, __file__, "--ranks"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "NPROC": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[")))
    return {"code": code_version(), "cores": available_cores(), "measured": found}


def sizes(actors: int) -> list[int]:
    return sorted(
        {max(1, round(actors * part)) for part in (1 / 64, 1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4, 1)}
    )


def simulated() -> list[dict[str, Any]]:
    return [
        {"actors": a, "learners": n, "share": share, "in_vain": simulate(n, a, share)}
        for a in ACTORS
        for share in SHARES
        for n in sizes(a)
    ]


def rate(row: dict[str, Any]) -> float:
    return row["collisions"] / max(row["taken"] + row["collisions"], 1)


def figure_of(data: dict[str, Any]) -> Figure:
    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(9.6, 4.4), layout="constrained")
        left, right = figure.subplots(1, 2, sharex=True)
        x = np.linspace(1 / 64, 1, 200)
        left.plot(x, [meet(v * 256, 256) for v in x], color=color(4), label="meets another learner")
        left.plot(x, [in_vain(v * 256, 256) for v in x], color=color(5), label="copy is discarded")
        left.set_title("All draw at the same time (256 actors)")
        for index, share in enumerate(SHARES):
            for actors, style in zip(ACTORS, (":", "--", "-"), strict=True):
                rows = [r for r in data["simulated"] if (r["actors"], r["share"]) == (actors, share)]
                line = right.plot([r["learners"] / actors for r in rows], [r["in_vain"] for r in rows])[0]
                line.set(color=color(index), linestyle=style, linewidth=1.3)
            dots = [r for r in data["measured"] if r["share"] == share]
            place = [r["learners"] / WINDOWS for r in dots]
            label = f"{share:.0%} copying, measured"
            right.plot(place, [rate(r) for r in dots], "o", color=color(index), label=label)
        right.set_title("At their own pace")
        for actors, style in zip(ACTORS, (":", "--", "-"), strict=True):
            right.plot([], [], style, color=MUTED, linewidth=1.3, label=f"{actors} actors, simulated")
        for panel in (left, right):
            panel.axvline(0.25, color=REFERENCE, linewidth=1, zorder=0)
            panel.set_xlabel("Learners per actor")
            panel.yaxis.set_major_formatter(PercentFormatter(1.0))
        legend_under(left)
        legend_under(right, 2)
        left.set_ylabel("Copies (%)")
    return figure


def page(data: dict[str, Any]) -> str:
    rows = []
    for row in data["measured"]:
        model = simulate(row["learners"], WINDOWS, row["share"])
        rows.append(
            f"| {row['learners']} | {row['learners'] / WINDOWS:.0%} | {row['share']:.0%} "
            f"| {row['taken'] + row['collisions']:,} | {rate(row):.1%} | {model:.1%} |"
        )
    quarter = {
        share: next(
            r["in_vain"] for r in data["simulated"]
            if (r["actors"], r["learners"], r["share"]) == (256, 64, share)
        ) for share in SHARES
    }  # fmt: skip
    text = ", ".join(f"{value:.1%} at {share:.0%}" for share, value in quarter.items())
    return f"""# Collisions at MPI windows

Made by `python scripts/studies/window_collisions.py`.

Several learners that read actors' rings at random (`workflow.selection=random`) sometimes copy the same
unroll, and all but one of them discard it; with `range` they never do.

![collisions](window_collisions.png)

Left: all learners draw a window at the same moment, as in EXARL's simulation. At learners = 25 % of actors
(grey line) a learner meets another with probability {meet(64, 256):.0%}, and {in_vain(64, 256):.0%} of all
copies are discarded; at as many learners as actors {meet(256, 256):.0%} and {in_vain(256, 256):.0%}. From the
grey line on EXARL calls collisions significant.

Right: learners at their own pace, which spend a share of their time copying unrolls and the rest learning.
Lines are simulated (dotted, dashed, solid: {", ".join(map(str, ACTORS))} actors: the ratio decides), dots
measured. With learners = 25 % of actors, the discarded copies are {text} of the time copying. So collisions
cost little once learning takes longer than fetching; `range` never has any and is the default.

Measured with {WINDOWS} rings of {PRODUCERS} producing ranks and up to {max(LEARNERS)} learning ranks on
{data["cores"]} cores. So many ranks cannot copy at the same time on so few cores, so each copy sleeps for
{1000 * COPY_SECONDS:.0f} ms, as over a slow network. Claims, counters and rings are the real ones.

| learners | of actors | time copying | copies | discarded, measured | simulated |
|---|---|---|---|---|---|
{chr(10).join(rows)}
"""


def write(data: dict[str, Any]) -> None:
    figure_of(data).savefig(RESULTS / "window_collisions.png")
    (RESULTS / "window_collisions.md").write_text(page(data))


if __name__ == "__main__":
    stored = RESULTS / "window_collisions.json"
    run_on_ranks(__doc__, stored, on_ranks, lambda: measure() | {"simulated": simulated()}, write)
