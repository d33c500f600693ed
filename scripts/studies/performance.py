"""Writes docs/performance.md from what `jaxrl-hpc bench …` measured (docs/data/bench_*.json).

python scripts/studies/performance.py                        write the page again
python scripts/studies/performance.py --measure [--quick]    measure first, on an otherwise idle machine
  --only train growth                                        only these
  --peer-path ../purejaxrl                                   with a checkout of purejaxrl
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import readme  # beside this file

from jaxrl_hpc.bench import cases, train, train_tables
from jaxrl_hpc.bench import growth as growth_bench
from jaxrl_hpc.bench import start as start_bench
from jaxrl_hpc.bench.threads import WORTH_IT
from jaxrl_hpc.runtime import machine

DOCS = Path(__file__).resolve().parents[2] / "docs"
DATA = DOCS / "data"
IMAGES = DOCS / "images"
KINDS = {
    "train": ["train", "--only", *(case.name for case in cases.CASES)],
    "atari": ["train", "--only", *train.ATARI],
    "returns": ["train", "--only", "returns"],
    "slots": ["train", "--only", "slots"],
    "priorities": ["train", "--only", "priorities"],
    "pieces": ["pieces"],
    "growth": ["growth"],
    "start": ["start"],
    "threads": ["threads"],
}


def data_file(kind: str) -> Path:
    return DATA / f"bench_{kind}.json"


def measure(quick: bool, only: list[str] | None, peer_options: list[str], before: str | None) -> None:
    DATA.mkdir(exist_ok=True)
    for kind, arguments in KINDS.items():
        if kind in (only or KINDS):
            command = [sys.executable, "-m", "jaxrl_hpc.cli.main", "bench", *arguments]
            command += peer_options if arguments[0] == "train" else []
            command += ["--before", before] if before and kind == "start" else []
            subprocess.run([*command, "--json", str(data_file(kind)), *["--quick"] * quick], check=True)


def circumstances(report: dict[str, Any]) -> str:
    """On what, how, and how calm it was."""
    facts = report["machine"]
    known = {name: version for name, version in facts["versions"].items() if version}
    versions = ", ".join(f"{name} {version}" for name, version in (known | report.get("peers", {})).items())
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


def case_rows(case: dict[str, Any]) -> list[str]:
    against = {(c["peer"], c["mode"]): c for c in case["comparisons"]}
    rows = []
    for result in case["results"]:
        found = against.get((result["library"], result["mode"]))
        cells = [
            case["title"],
            result["mode"],
            result["library"],
            f"{result['env_steps_per_second']:,.0f}",
            f"{result['cpu_microseconds_per_update']:,.0f}",
            f"{result['cores']:.2f}",
            train_tables.megabytes(result),
            train_tables.compile_seconds(result),
            f"**{train_tables.times(found['rate'])}**" if found else "",
            f"**{train_tables.times(found['cpu'])}**" if found else "",
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def table(report: dict[str, Any]) -> list[str]:
    """All cases, and which goals they reach."""
    return [
        "| work | started | library | steps/s | CPU µs/update | cores | peak MB | compile s | our rate "
        "| our CPU |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(row for case in report["cases"] for row in case_rows(case)),
        "",
        "Against the best of the peers:",
        *(f"- {case['title']}: {line}" for case in report["cases"] for line in train.goals(case)),
        "",
    ]


def atari(report: dict[str, Any]) -> list[str]:
    names = " ".join(case["name"] for case in report["cases"])
    return [
        "## Learning from images",
        "Breakout (Atari) by PPO with the sizes of `configs/atari_breakout_ppo.yaml`: 8 games, unrolls of "
        "128, 3 epochs of 8 minibatches, two convolutions (16 of 8 × 8, 32 of 4 × 4) and a layer of 256 "
        "shared by policy and value, four stacked frames of 84 × 84, four frames an action. Ours steps "
        "envpool; stable-baselines3 steps ale-py with its own Atari wrappers in one process, its default. A "
        f"step is an action. Measured by `jaxrl-hpc bench train --only {names}`, the libraries taking turns.",
        "",
        circumstances(report),
        "",
        *table(report),
    ]


def training(report: dict[str, Any]) -> list[str]:
    if not report["cases"]:
        return []
    lines = [
        "## Training loops against other libraries",
        "CartPole-v1 (TD3: Pendulum-v1), MLP 64 × 64, batch 128, replay of 65,536, Adam; the same sizes, "
        "activations and numbers of updates for all, counted by each library itself; compilation is timed "
        "separately, evaluation excluded. rejax is compared on double DQN, the others on plain DQN, as they "
        "implement it. Each library is started with its defaults; *pinned*: held to one core. Measured by "
        "`jaxrl-hpc bench train`, the libraries taking turns. The last columns are our rate divided by the "
        "peer's, and the peer's CPU time per update divided by ours: medians over rounds, with extremes.",
        "",
        circumstances(report),
        "",
        *table(report),
        "![Ratios to each peer](images/bench_train.svg)",
        "",
    ]
    if "purejaxrl" in report["peers"]:
        lines += [
            f"purejaxrl is measured from a checkout at commit {report['peers']['purejaxrl']}, unchanged, on "
            "today's jax and gymnax, with the network's width and all sizes set to those of the work "
            "(`jaxrl_hpc/bench/peers/run_purejaxrl.py`); a training of 20,000 updates of DQN or 24 unrolls "
            "of PPO is one program, seeds are vmapped.",
            "",
        ]
    return lines


def returns(report: dict[str, Any]) -> list[str]:
    lines = [
        "### The same work brings the same return",
        "Greedy episodes after the same number of environment steps and updates, one figure per seed "
        "(`jaxrl-hpc bench train --only returns`). CartPole ends at 500.",
        "",
        "| work | library | steps | updates | returns |",
        "|---|---|---|---|---|",
    ]
    for line in report["returns"]:
        reached = ", ".join(f"{value:,.0f}" for value in line["returns"])
        cells = [line["title"], line["library"], f"{line['env_steps']:,}", f"{line['updates']:,}", reached]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def slots(report: dict[str, Any]) -> list[str]:
    lines = [
        "## The size of the replay",
        "DQN 8 : 1 with the replay almost full. Nothing of the replay's size is copied or scanned, so only "
        "the caches should have an effect (goal: at most "
        f"{report['slots']['goal']}× slower from first to last).",
        "",
        circumstances(report),
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
    return [*lines, "| bound / measured | " + " | ".join(parts) + " |", ""]


def growth(report: dict[str, Any]) -> list[str]:
    lines = [
        "## How cost grows",
        "CPU time per unit of work and peak memory while one thing grows (`jaxrl-hpc bench growth`). The "
        "unit is what should cost the same at every size; *growth* is its cost relative to the cheapest "
        "smaller size: above 1 it grows faster than the work.",
        "",
        circumstances(report),
        "",
        "![CPU time per unit of work and peak memory](images/bench_growth.svg)",
        "",
    ]
    for axis in report["axes"]:
        lines += [
            f"| {axis['title']} | CPU µs per {axis['unit']} | growth | peak MB |",
            "|---|---|---|---|",
            *(
                f"| {line['size']:,} | {line['cpu_microseconds']:.3f} | {line['growth']:.2f}× "
                f"| {line['peak_bytes'] / train_tables.MEGABYTE:,.0f} |"
                for line in axis["lines"]
            ),
            "",
        ]
    return lines


def start(report: dict[str, Any]) -> list[str]:
    lines = [
        "## From the prompt to the summary",
        "Short runs of `jaxrl-hpc train` with an empty cache of compiled programs and with a full one "
        "(`jaxrl-hpc bench start`), seconds: until the summary is printed, until the command has ended (it "
        "draws pictures in between), and what the run itself calls compiling. *Before* is the version in the "
        "folder given by `--before`, in turns with this one.",
        "",
        circumstances(report),
        "",
        "| run | cache | version | to the summary | CPU | to the end | CPU | compiling |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for line in report["lines"]:
        figures = " | ".join(f"{line[figure]:.2f}" for figure in start_bench.FIGURES)
        run = f"`{line['config']}`, {line['steps']:,} steps"
        lines.append(f"| {run} | {line['cache']} | {line['version']} | {figures} |")
    return [*lines, "", *(f"- {text}" for text in start_bench.goals(report["lines"])), ""]


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
        "`--measure` it repeats them. Replay memories have a page of their own: "
        "[results/replay.md](results/replay.md).",
        "",
    ]
    sections = {
        "train": training,
        "atari": atari,
        "returns": returns,
        "slots": slots,
        "priorities": priorities,
        "pieces": pieces,
        "growth": growth,
        "start": start,
        "threads": threads,
    }
    for kind, section in sections.items():
        lines += section(reports[kind]) if kind in reports else []
    return "\n".join(lines).rstrip() + "\n"


def draw(reports: dict[str, dict[str, Any]]) -> None:
    """The page's pictures."""
    if "train" in reports:
        train_tables.draw(reports["train"], IMAGES / "bench_train.svg")
    if "growth" in reports:
        growth_bench.draw(reports["growth"], IMAGES / "bench_growth.svg")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measure", action="store_true", help="run the benchmarks first")
    parser.add_argument("--quick", action="store_true", help="with --measure: short ones")
    parser.add_argument("--only", nargs="+", choices=list(KINDS), help="with --measure: only these")
    parser.add_argument("--peer-path", help="with --measure: a checkout of purejaxrl")
    parser.add_argument("--peer-python", help="with --measure: the Python that has the peers")
    parser.add_argument("--before", help="with --measure: a checkout of an earlier version, for `start`")
    parser.add_argument("--rounds", help="with --measure: turns of every library")
    parser.add_argument("--seconds", help="with --measure: of a turn")
    args = parser.parse_args()
    if args.measure:
        names = ("peer-path", "peer-python", "rounds", "seconds")
        given = {f"--{name}": getattr(args, name.replace("-", "_")) for name in names}
        peers = [part for pair in given.items() if pair[1] for part in pair]
        measure(args.quick, args.only, peers, args.before)
    reports = {kind: json.loads(data_file(kind).read_text()) for kind in KINDS if data_file(kind).exists()}
    if not reports:
        print("nothing is measured yet: add --measure", file=sys.stderr)
        return 2
    draw(reports)
    target = DOCS / "performance.md"
    target.write_text(page(reports))
    readme.write()
    print(f"written to {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
