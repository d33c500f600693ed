"""Writes docs/performance.md from what `jaxrl-hpc bench train|threads|pieces` measured (docs/data/*.json).

python scripts/studies/performance.py                        write the page again
python scripts/studies/performance.py --measure [--quick]    measure first, on an otherwise idle machine
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import readme  # beside this file

from jaxrl_hpc.bench import train
from jaxrl_hpc.bench.threads import WORTH_IT
from jaxrl_hpc.runtime import machine

DOCS = Path(__file__).resolve().parents[2] / "docs"
DATA = DOCS / "data"
KINDS = {
    "train": ["train", "--only", *(name for name in train.NAMES if name != "priorities")],
    "priorities": ["train", "--only", "priorities"],
    "pieces": ["pieces"],
    "threads": ["threads"],
}


def data_file(kind: str) -> Path:
    return DATA / f"bench_{kind}.json"


def measure(quick: bool, only: list[str] | None) -> None:
    DATA.mkdir(exist_ok=True)
    for kind, arguments in KINDS.items():
        if kind in (only or KINDS):
            command = [sys.executable, "-m", "jaxrl_hpc.cli.main", "bench", *arguments]
            subprocess.run([*command, "--json", str(data_file(kind)), *["--quick"] * quick], check=True)


def circumstances(report: dict[str, Any]) -> str:
    """On what, how, and how calm it was."""
    facts = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items() if version)
    text = f"{facts['processor']}, {facts['cores']} cores; {versions}; {report['rounds']} rounds, medians"
    if "seconds" in report:
        text += f" of {report['seconds']} s each"
    loads = [facts["load"], facts.get("load_after", facts["load"])]
    if max(loads) > facts["cores"]:
        text += (
            f". **The machine was busy** (load {loads[0]:.1f} before, {loads[1]:.1f} after, on "
            f"{facts['cores']} cores): rates are far below what an idle machine gives, and a library with "
            "more threads can get a larger share of the cores; the CPU time per update suffers less"
        )
    return text + (". Quick measurement: a first look." if report["quick"] else ".")


def result_of(case: dict[str, Any], library: str, mode: str) -> dict[str, Any] | None:
    found = [r for r in case["results"] if (r["library"], r["mode"]) == (library, mode)]
    return found[0] if found else None


def case_rows(case: dict[str, Any]) -> list[str]:
    rows = []
    for mode in ("default", "pinned"):
        ours, theirs = result_of(case, "ours", mode), result_of(case, "rejax", mode)
        if ours is None:
            continue
        cells = [case["title"], mode, f"{ours['env_steps_per_second']:,.0f}"]
        if theirs is None:
            cells += ["–"] * 4
        else:
            found = case["ratios"][mode]
            cpu = theirs["cpu_microseconds_per_update"] / ours["cpu_microseconds_per_update"]
            cells += [
                f"{theirs['env_steps_per_second']:,.0f}",
                f"**{found['median']:.1f}×** ({found['low']:.1f}–{found['high']:.1f})",
                f"{ours['cpu_microseconds_per_update']:,.0f} / {theirs['cpu_microseconds_per_update']:,.0f}"
                f" ({cpu:.1f}×)",
                f"{case['goal']}×: {train.verdict(found['median'], case['goal'])}"
                if mode == "default"
                else "",
            ]
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def training(report: dict[str, Any]) -> list[str]:
    lines = [
        "## Training loops against rejax",
        "CartPole-v1 (TD3: Pendulum-v1), MLP 64 × 64, batch 128, replay of 65,536, Adam; the same sizes, "
        "activations and numbers of updates on both sides, compiling and evaluation not counted. Each "
        "library is started as it is by default; *pinned*: held to one core. Measured by "
        "`jaxrl-hpc bench train`, the libraries taking turns; a ratio is the median over rounds, with its "
        "extremes.",
        "",
        circumstances(report),
        "",
        "| work | started | ours, steps/s | rejax, steps/s | ratio | CPU µs/update, ours / rejax | goal |",
        "|---|---|---|---|---|---|---|",
        *(row for case in report["cases"] for row in case_rows(case)),
        "",
    ]
    if not report["cases"]:
        return []
    return lines


def slots(report: dict[str, Any]) -> list[str]:
    if "slots" not in report:
        return []
    lines = [
        "## The size of the replay",
        "DQN 8 : 1 with the replay almost full. Nothing of the replay's size is copied or scanned, so only "
        f"the caches should show (goal: at most {report['slots']['goal']}× slower from first to last).",
        "",
        "| slots | library | updates/s | slower than the first |",
        "|---|---|---|---|",
    ]
    for library in ("ours", "rejax"):
        for line in report["slots"].get(library, []):
            rate, slowdown = line["updates_per_second"], line["slowdown"]["median"]
            lines.append(f"| {line['slots']:,} | {library} | {rate:,.0f} | {slowdown:.2f}× |")
    return [*lines, ""]


def priorities(report: dict[str, Any]) -> list[str]:
    if "priorities" not in report:
        return []
    goal = report["priorities"]["goal"]
    lines = [
        "## What priorities cost",
        "DQN 8 : 1 with uniform and with prioritised replay in turns (`jaxrl-hpc bench train --only "
        f"priorities`), CPU µs per update (goal: at most {goal}×).",
        "",
        circumstances(report),
        "",
        "| slots | uniform | prioritised | cost | goal |",
        "|---|---|---|---|---|",
    ]
    for line in report["priorities"]["lines"]:
        met = "reached" if line["cost"] <= goal else "missed"
        lines.append(
            f"| {line['slots']:,} | {line['uniform']:,.0f} | {line['prioritised']:,.0f} "
            f"| {line['cost']:.2f}× | {met} |"
        )
    return [*lines, ""]


def pieces(report: dict[str, Any]) -> list[str]:
    widths = [line["width"] for line in report["lines"]]
    rate = report["flops_per_second"] / 1e9
    lines = [
        "## Where an iteration's time goes",
        "DQN, 8 environments : 1 update, batch 128, one thread, CPU µs (`jaxrl-hpc bench pieces`). The bound "
        f"is the floating-point work of the matrix products at {rate:.0f} GFLOP/s, the best that a large "
        "product reached on this core. *Rest* is what the pieces, run alone, do not account for: the loop, "
        "small copies, metrics, and probably caches that a piece alone has to itself.",
        "",
        circumstances(report),
        "",
        "| piece | " + " | ".join(f"width {w}" for w in widths) + " |",
        "|---|" + "---|" * len(widths),
    ]
    for name in report["lines"][0]["microseconds"]:
        cells = (f"{line['microseconds'][name]:,.1f}" for line in report["lines"])
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    bounds = (f"{line['bound_microseconds']:,.1f}" for line in report["lines"])
    parts = (f"{line['part_of_bound']:.0%}" for line in report["lines"])
    lines += ["| arithmetic bound | " + " | ".join(bounds) + " |"]
    return [*lines, "| reached of the bound | " + " | ".join(parts) + " |", ""]


def threads(report: dict[str, Any]) -> list[str]:
    point, count = report["turning_point"], report["threads"]
    turn = f"from width {point} on" if point else "at no width tried"
    lines = [
        "## Threads",
        f"A single run with one XLA thread and with {count}, by the width of its two hidden layers "
        f"(`jaxrl-hpc bench threads`): more threads bring {WORTH_IT}× or more {turn}. "
        f"`WIDE_LAYER = {machine.WIDE_LAYER}` is in use: narrower networks get one thread, and several seeds "
        "one core each.",
        "",
        circumstances(report),
        "",
        f"| width | 1 thread, updates/s | {count} threads | speed-up |",
        "|---|---|---|---|",
    ]
    for line in report["lines"]:
        rates = " | ".join(f"{line[name]['updates_per_second']:,.0f}" for name in ("one", "all"))
        lines.append(f"| {line['width']} | {rates} | {line['speedup']['median']:.2f}× |")
    return [*lines, ""]


def page(reports: dict[str, dict[str, Any]]) -> str:
    lines = [
        "# Performance",
        "",
        "Written by `python scripts/studies/performance.py` from measurements in `docs/data/`; with "
        "`--measure` it takes them anew. Replay memories have a page of their own: "
        "[results/replay.md](results/replay.md).",
        "",
    ]
    if "train" in reports:
        lines += training(reports["train"]) + slots(reports["train"])
    if "priorities" in reports:
        lines += priorities(reports["priorities"])
    if "pieces" in reports:
        lines += pieces(reports["pieces"])
    if "threads" in reports:
        lines += threads(reports["threads"])
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measure", action="store_true", help="run the benchmarks first")
    parser.add_argument("--quick", action="store_true", help="with --measure: short ones")
    parser.add_argument("--only", nargs="+", choices=list(KINDS), help="with --measure: only these")
    args = parser.parse_args()
    if args.measure:
        measure(args.quick, args.only)
    reports = {kind: json.loads(data_file(kind).read_text()) for kind in KINDS if data_file(kind).exists()}
    if not reports:
        print("nothing is measured yet: add --measure", file=sys.stderr)
        return 2
    target = DOCS / "performance.md"
    target.write_text(page(reports))
    readme.write()
    print(f"written to {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
