"""The layer width from which more XLA threads speed up a single run.

examples:
  jaxrl-hpc bench threads --quick
  jaxrl-hpc bench threads --json bench_threads.json

Trains DQN (8 environments : 1 update, batch 128) with two hidden layers of growing width, with one XLA
thread and with one per core, in turns. The first width from which on more threads are quicker is what
WIDE_LAYER in jaxrl_hpc/runtime/machine.py should say: narrower networks get one thread.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxrl_hpc.bench.cases import WIDTHS, width_case
from jaxrl_hpc.bench.interleave import Entry, machine_facts, ratio, take_turns
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runtime import host, machine

WORTH_IT = 1.1  # a second core must bring at least this much to be taken from another run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="short rounds, for a first look")
    parser.add_argument("--json", metavar="FILE", help="also write the results here")


def turning_point(lines: Sequence[dict[str, Any]]) -> int | None:
    """The first width from which on more threads are always worth it."""
    wide = None
    for line in lines:
        worth = line["speedup"]["median"] >= WORTH_IT
        wide = (wide or line["width"]) if worth else None
    return wide


def measure(quick: bool, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    cores = host.available_cores()
    if cores < 2:
        raise UserError("bench threads: this process may use one core only; there is nothing to compare")
    seconds, rounds = (0.5, 3) if quick else (2.0, 9)
    report: dict[str, Any] = {"quick": quick, "seconds": seconds, "rounds": rounds, "threads": cores}
    report["machine"] = machine_facts()
    lines = []
    for width in WIDTHS:
        cases = [width_case(width, threads) for threads in (1, cores)]
        entries = [Entry("ours", case.name, case.work) for case in cases]
        say(f"width {width}")
        one, all_cores = take_turns(entries, seconds, rounds)
        lines.append({"width": width, "one": one, "all": all_cores, "speedup": ratio(all_cores, one)})
    report["lines"], report["turning_point"] = lines, turning_point(lines)
    report["in_use"] = machine.WIDE_LAYER
    report["machine"]["load_after"] = machine_facts()["load"]
    return report


def run(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    with console.status("starting …") as status:
        report = measure(args.quick, status.update)
    table = Table("width", "1 thread, updates/s", f"{report['threads']} threads", "speed-up", box=None)
    for line in report["lines"]:
        rates = (line[name]["updates_per_second"] for name in ("one", "all"))
        table.add_row(str(line["width"]), *(f"{r:,.0f}" for r in rates), f"{line['speedup']['median']:.2f}×")
    console.print(table)
    facts, point = report["machine"], report["turning_point"]
    console.print(
        f"more threads pay (by {WORTH_IT}× or more) "
        + (f"from width {point} on" if point else "at no width here")
        + f"; in use is WIDE_LAYER = {report['in_use']}"
        + f" (load {facts['load']:.1f} before and {facts['load_after']:.1f} after)"
    )
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=1) + "\n")
        console.print(f"written to {args.json}")
    return 0
