"""Training speed: ours against rejax on the same work, in one interleaved run.

examples:
  jaxrl-hpc bench train --quick
  jaxrl-hpc bench train --json bench_train.json
  jaxrl-hpc bench train --only dqn_8 td3

Every library runs in a process of its own, started as it is by default; where the table says pinned, held
to one core. Compiling is not counted, nor is evaluation. Rounds alternate between the libraries, so that
other load on the machine falls on all alike: trust the ratios, not the rates.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxrl_hpc.bench.cases import CASES, PRIORITY_CASES, PRIORITY_GOAL, SLOT_CASES, SLOTS_GOAL, Case
from jaxrl_hpc.bench.interleave import Entry, machine_facts, ratio, take_turns
from jaxrl_hpc.errors import UserError

NAMES = (*(case.name for case in CASES), "slots", "priorities")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="short rounds, for a first look")
    parser.add_argument("--only", nargs="+", metavar="CASE", help=f"some of: {', '.join(NAMES)}")
    parser.add_argument("--json", metavar="FILE", help="also write the results here")


def _measure_case(case: Case, peers: bool, seconds: float, rounds: int, say: Callable[[str], None]) -> dict:
    """One line of the table: every library and way of starting it."""
    entries = [
        Entry(library, case.name, mode)
        for mode in (("default", "pinned") if case.pinned else ("default",))
        for library in (("ours", "rejax") if peers and case.rejax else ("ours",))
    ]
    results = take_turns(entries, seconds, rounds, lambda text: say(f"{case.title}: {text}"))
    found = {(r["library"], r["mode"]): r for r in results}
    ratios = {
        mode: ratio(found["ours", mode], found["rejax", mode])
        for mode in ("default", "pinned")
        if ("rejax", mode) in found
    }
    return {"name": case.name, "title": case.title, "goal": case.goal, "results": results, "ratios": ratios}


def _measure_slots(peers: bool, seconds: float, rounds: int, say: Callable[[str], None]) -> dict:
    """Our update at every size of the replay in turns; then rejax's."""
    lines = {}
    for library in ("ours", "rejax") if peers else ("ours",):
        cases = [case for case in SLOT_CASES if library == "ours" or case.rejax]
        entries = [Entry(library, case.name) for case in cases]
        results = take_turns(entries, seconds, rounds, lambda text: say(f"replay sizes: {text}"))
        lines[library] = [
            {"slots": int(case.name.removeprefix("slots_")), "slowdown": ratio(results[0], result), **result}
            for case, result in zip(cases, results, strict=True)
        ]
    return {"goal": SLOTS_GOAL, **lines}


def _measure_priorities(seconds: float, rounds: int, say: Callable[[str], None]) -> dict:
    """Uniform and prioritised replay in turns, at two sizes; the cost is that of CPU time."""
    entries = [Entry("ours", case.name) for case in PRIORITY_CASES]
    results = take_turns(entries, seconds, rounds, lambda text: say(f"priorities: {text}"))
    lines = []
    for case, uniform, prioritised in zip(PRIORITY_CASES[::2], results[::2], results[1::2], strict=True):
        cpu = [result["cpu_microseconds_per_update"] for result in (uniform, prioritised)]
        slots = int(case.name.removeprefix("uniform_"))
        lines.append({"slots": slots, "uniform": cpu[0], "prioritised": cpu[1], "cost": cpu[1] / cpu[0]})
    return {"goal": PRIORITY_GOAL, "lines": lines}


def measure(
    only: Sequence[str] | None,
    quick: bool,
    say: Callable[[str], None] = lambda text: None,
    save: Callable[[dict[str, Any]], None] = lambda report: None,
) -> dict[str, Any]:
    """All that is asked for, as plain data; saved after every case, since the whole takes a while."""
    chosen = list(only or NAMES)
    for name in chosen:
        if name not in NAMES:
            raise UserError(f"--only: there is no case {name!r}; known are {', '.join(NAMES)}")
    peers = importlib.util.find_spec("rejax") is not None
    seconds, rounds = (0.5, 3) if quick else (2.0, 9)
    report: dict[str, Any] = {"quick": quick, "seconds": seconds, "rounds": rounds, "peers": peers}
    report["machine"] = machine_facts()
    report["cases"] = []

    def keep() -> None:
        report["machine"]["load_after"] = machine_facts()["load"]
        save(report)

    for case in CASES:
        if case.name in chosen:
            report["cases"].append(_measure_case(case, peers, seconds, rounds, say))
            keep()
    if "slots" in chosen:
        report["slots"] = _measure_slots(peers, seconds, rounds, say)
        keep()
    if "priorities" in chosen:
        report["priorities"] = _measure_priorities(seconds, rounds, say)
        keep()
    return report


def verdict(ratio: float, goal: float | None) -> str:
    if goal is None:
        return ""
    return "reached" if ratio >= goal else "missed"


def _tables(report: dict[str, Any]) -> list[Any]:
    from rich.table import Table

    table = Table(
        "work", "started", "library", "steps/s", "updates/s", "CPU µs/update", "ratio", "goal", box=None
    )
    for case in report["cases"]:
        for result in case["results"]:
            shown = [case["title"], result["mode"], result["library"]]
            shown += [f"{result['env_steps_per_second']:,.0f}", f"{result['updates_per_second']:,.0f}"]
            shown.append(f"{result['cpu_microseconds_per_update']:,.0f}")
            found = case["ratios"].get(result["mode"])
            if result["library"] == "ours" and found:
                shown.append(f"{found['median']:.1f}× ({found['low']:.1f}–{found['high']:.1f})")
                if result["mode"] == "default":
                    shown.append(f"{case['goal']}×: {verdict(found['median'], case['goal'])}")
            table.add_row(*shown)
    tables = [table] if report["cases"] else []
    if "slots" in report:
        slots = Table("replay slots", "library", "updates/s", "slowdown", box=None)
        for library in ("ours", "rejax"):
            for line in report["slots"].get(library, []):
                slots.add_row(
                    f"{line['slots']:,}",
                    library,
                    f"{line['updates_per_second']:,.0f}",
                    f"{line['slowdown']['median']:.2f}×",
                )
        tables.append(slots)
    if "priorities" in report:
        priorities = Table("replay slots", "uniform, CPU µs/update", "prioritised", "cost", box=None)
        for line in report["priorities"]["lines"]:
            figures = (f"{line['uniform']:,.0f}", f"{line['prioritised']:,.0f}", f"{line['cost']:.2f}×")
            priorities.add_row(f"{line['slots']:,}", *figures)
        tables.append(priorities)
    return tables


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    console = Console()

    def save(report: dict[str, Any]) -> None:
        if args.json:
            Path(args.json).write_text(json.dumps(report, indent=1) + "\n")

    with console.status("starting …") as status:
        report = measure(args.only, args.quick, status.update, save)
    for table in _tables(report):
        console.print(table)
    if not report["peers"]:
        console.print('rejax is not installed (pip install "jaxrl-hpc[peers]"): only our own rates are shown')
    facts = report["machine"]
    console.print(
        f"{facts['processor']}, {facts['cores']} cores, load {facts['load']:.1f} before and "
        f"{facts['load_after']:.1f} after; {report['rounds']} rounds of {report['seconds']} s, medians"
        + (" (quick: a first look)" if report["quick"] else "")
    )
    if args.json:
        console.print(f"written to {args.json}")
    return 0
