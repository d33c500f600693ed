"""How cost grows with size: environments, seeds, layer widths, replay, batch.

examples:
  jaxrl-hpc bench growth --quick
  jaxrl-hpc bench growth --json bench_growth.json --plot growth.svg

Trains with each size of one axis in turns and shows CPU time per unit of work, and peak memory. The unit is
what should cost the same at every size: an environment step of any seed; an update, whatever the size of the
replay; a row of the batch; a million floating-point operations of matrix products for the width. `growth` is
the CPU time per unit relative to the cheapest smaller size: above 1, cost grows faster than the work.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl_hpc.bench.cases import Work, dqn, ppo
from jaxrl_hpc.bench.interleave import Entry, machine_facts, take_turns
from jaxrl_hpc.bench.profile import update_flops
from jaxrl_hpc.errors import UserError

SMALL_REPLAY = 4_096  # where the replay is not what grows


class Axis(NamedTuple):
    """One axis of growth."""

    name: str
    title: str
    unit: str
    sizes: tuple[int, ...]
    work: Callable[[int], Work]
    units_per_update: Callable[[int], float]


AXES = (
    Axis(
        "environments",
        "PPO, environments × 128 steps",
        "environment step",
        (8, 64, 512, 4_096, 8_192),
        ppo,
        lambda size: size * 128 / 16,
    ),
    Axis(
        "seeds",
        "DQN 8 : 1, seeds",
        "environment step",
        (1, 4, 16, 64, 256),
        lambda size: dqn(8, seeds=size, capacity=SMALL_REPLAY),
        lambda size: 8,
    ),
    Axis(
        "width",
        "DQN 8 : 1, width of both layers",
        "million operations",
        (64, 128, 256, 512, 1_024),
        lambda size: dqn(8, width=size, capacity=SMALL_REPLAY, threads=1),
        lambda size: update_flops([4, size, size, 2], 128) / 1e6,
    ),
    Axis(
        "replay",
        "DQN 8 : 1, slots of the replay",
        "update",
        tuple(2**n for n in (12, 14, 16, 18, 20)),
        lambda size: dqn(8, capacity=size),
        lambda size: 1,
    ),
    Axis(
        "batch",
        "DQN 8 : 1, batch",
        "row of the batch",
        (32, 128, 512, 2_048),
        lambda size: dqn(8, batch_size=size),
        lambda size: size,
    ),
)
NAMES = tuple(axis.name for axis in AXES)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="short rounds, for a first look")
    parser.add_argument("--only", nargs="+", metavar="AXIS", help=f"some of: {', '.join(NAMES)}")
    parser.add_argument("--json", metavar="FILE", help="also write the results here")
    parser.add_argument("--plot", metavar="FILE", help="also draw the curves here (SVG, PNG or PDF)")


def growth(costs: Sequence[float]) -> list[float]:
    """Each cost relative to the smallest before it; the first is 1."""
    return [1.0, *(cost / min(costs[:i]) for i, cost in enumerate(costs) if i)]


def measure_axis(axis: Axis, seconds: float, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    entries = [Entry("ours", f"{axis.name}_{size}", axis.work(size)) for size in axis.sizes]
    results = take_turns(entries, seconds, rounds, lambda text: say(f"{axis.title}: {text}"))
    costs = [
        result["cpu_microseconds_per_update"] / axis.units_per_update(size)
        for size, result in zip(axis.sizes, results, strict=True)
    ]
    lines = [
        {"size": size, "cpu_microseconds": cost, "growth": grown, **result}
        for size, cost, grown, result in zip(axis.sizes, costs, growth(costs), results, strict=True)
    ]
    return {"name": axis.name, "title": axis.title, "unit": axis.unit, "lines": lines}


def measure(
    only: Sequence[str] | None,
    quick: bool,
    say: Callable[[str], None] = lambda text: None,
    save: Callable[[dict[str, Any]], None] = lambda report: None,
) -> dict[str, Any]:
    chosen = list(only or NAMES)
    for name in chosen:
        if name not in NAMES:
            raise UserError(f"--only: there is no axis {name!r}; known are {', '.join(NAMES)}")
    seconds, rounds = (0.3, 3) if quick else (1.0, 7)
    report: dict[str, Any] = {"quick": quick, "seconds": seconds, "rounds": rounds}
    report["machine"] = machine_facts()
    report["axes"] = []
    for axis in AXES:
        if axis.name in chosen:
            report["axes"].append(measure_axis(axis, seconds, rounds, say))
            report["machine"]["load_after"] = machine_facts()["load"]
            save(report)
    return report


def draw(report: dict[str, Any], path: Path) -> None:
    """CPU time per unit of work above, memory below, a column per axis."""
    import matplotlib
    from matplotlib.figure import Figure

    from jaxrl_hpc.report.style import MATPLOTLIB, color

    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(3.0 * len(report["axes"]), 5.0), layout="constrained")
        panels = figure.subplots(2, len(report["axes"]), squeeze=False, sharex="col")
        for column, axis in enumerate(report["axes"]):
            sizes = [line["size"] for line in axis["lines"]]
            cost, memory = panels[0][column], panels[1][column]
            cost.loglog(sizes, [line["cpu_microseconds"] for line in axis["lines"]], "o-", color=color(0))
            cost.set_title(axis["title"], fontsize=9)
            cost.set_ylabel(f"CPU µs per {axis['unit']}")
            memory.loglog(sizes, [line["peak_bytes"] / 2**20 for line in axis["lines"]], "o-", color=color(1))
            memory.set_xlabel(axis["name"].capitalize())
            memory.set_ylabel("Peak memory (MB)")
        figure.savefig(path)


def run(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    console = Console()

    def save(report: dict[str, Any]) -> None:
        if args.json:
            Path(args.json).write_text(json.dumps(report, indent=1) + "\n")

    with console.status("starting …") as status:
        report = measure(args.only, args.quick, status.update, save)
    for axis in report["axes"]:
        table = Table(axis["title"], f"CPU µs per {axis['unit']}", "growth", "peak MB", box=None)
        for line in axis["lines"]:
            memory = f"{line['peak_bytes'] / 2**20:,.0f}"
            table.add_row(
                f"{line['size']:,}", f"{line['cpu_microseconds']:.3f}", f"{line['growth']:.2f}×", memory
            )
        console.print(table)
    if args.json:
        console.print(f"written to {args.json}")
    if args.plot:
        draw(report, Path(args.plot))
        console.print(f"drawn to {args.plot}")
    return 0
