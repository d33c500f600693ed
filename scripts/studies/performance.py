"""Writes docs/performance.md from what `jaxrl-hpc bench …` measured (docs/data/bench_*.json).

python scripts/studies/performance.py                        write the page again
python scripts/studies/performance.py --measure [--quick]    measure first, on an otherwise idle machine
  --only train growth                                        only these
  --peer-path ../purejaxrl                                   with a checkout of purejaxrl
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import readme  # beside this file

import jaxrl_hpc
from jaxrl_hpc.bench import cases, interleave, profile, train, train_tables
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
PAGE_KINDS = (*KINDS, "candidates")  # the last is measured by candidates.py


# candidates of which there are no figures
NOT_MEASURED = (
    "Not built: one Threefry call per iteration for all keys, activations fused by hand, activations and "
    "gradients of one layer in one kernel, PPO's update in tiles with observations stored once.",
    "Built and in use, without a figure of its own: PPO's shuffle as a loop, TD3's policy update without the "
    "second critic.",
    "Seeds stacked in one program are the rule on accelerators. On CPUs `run.seeds_mode: auto` runs a "
    "program per seed, which has the bits of that seed alone at every width. A group of seeds per core is "
    "not built.",
)


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


def versions(report: dict[str, Any]) -> str:
    """Commit, if known, and versions of ours and of the peers."""
    facts = report["machine"]
    known = {name: version for name, version in facts["versions"].items() if version}
    names = [f"{name} {version}" for name, version in (known | report.get("peers", {})).items()]
    commit = [f"commit `{facts['commit'][:10]}`"] if facts.get("commit") else []
    return ", ".join([*commit, *names])


def circumstances(report: dict[str, Any]) -> str:
    """On what, how, and how calm it was."""
    facts = report["machine"]
    cores = "1 core" if facts["cores"] == 1 else f"{facts['cores']} cores"
    text = f"{facts['processor']}, {cores}; {versions(report)}; {report['rounds']} rounds, medians"
    if "seconds" in report:
        text += f" of {report['seconds']} s each"
    loads = [facts["load"], facts.get("load_after", facts["load"])]
    if max(loads) > facts["cores"]:
        text += (
            f". **The machine was busy** (load {loads[0]:.1f} before, {loads[1]:.1f} after, on {cores}): "
            "rates are far below what an idle machine gives, and a library with more threads can get a "
            "larger share of the cores; the CPU time per update suffers less"
        )
    if facts["versions"]["jaxrl-hpc"] != jaxrl_hpc.__version__:
        text += (
            f". **Figures of version {facts['versions']['jaxrl-hpc']}**, not measured again since: rates "
            "here do not compare with those of other sections"
        )
    return text + (". Quick measurement: a first look." if report["quick"] else ".")


def circumstances_of_cases(report: dict[str, Any]) -> list[str]:
    """A paragraph for each measurement that cases come from."""
    found: dict[str, list[str]] = {}
    for case in report["cases"]:
        found.setdefault(circumstances(train.facts_of(report, case["name"])), []).append(case["title"])
    if len(found) == 1:
        return [*found, ""]
    return [line for text, titles in found.items() for line in (f"*{'; '.join(titles)}*: {text}", "")]


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
        *(f"- {line}" for line in told_goals(report)),
        "",
    ]


def told_goals(report: dict[str, Any]) -> list[str]:
    return [f"{case['title']}: {line}" for case in report["cases"] for line in train.goals(case)]


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
        *circumstances_of_cases(report),
        *table(report),
    ]


def training(report: dict[str, Any]) -> list[str]:
    if not report["cases"]:
        return []
    lines = [
        "## Training loops against other libraries",
        "CartPole-v1 (TD3: Pendulum-v1), MLP 64 × 64, batch 128, replay of 65,536, Adam; the same sizes, "
        "activations and numbers of updates for all, counted by each library itself; compilation is timed "
        "separately, one library after another and without a cache, evaluation excluded. rejax is compared "
        "on double DQN, the others on plain DQN, as they implement it. Each library is started with its "
        "defaults; *pinned*: its process has one core from the start, and a row in which it used more than "
        f"{interleave.PINNED_CORES} cores is refused. Measured by `jaxrl-hpc bench train`, the libraries "
        "taking turns. The last columns are our rate divided by the "
        "peer's, and the peer's CPU time per update divided by ours: medians over rounds, with extremes. In "
        "rows of DQN at commit `9156d5b794` ours learned by Huber's loss, the others by the squared error.",
        "",
        *circumstances_of_cases(report),
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
        "## What equal work brings",
        "Greedy episodes after the same number of environment steps and updates, one figure per seed "
        "(`jaxrl-hpc bench train --only returns`). CartPole ends at 500; Pendulum's returns are negative. "
        "All have DQN learn by the squared error. So few seeds tell apart only what differs much: below the "
        "table, where they do.",
        "",
        f"Measured with {versions(train.facts_of(report, 'returns'))}.",
        "",
        "| work | library | steps | updates | returns |",
        "|---|---|---|---|---|",
    ]
    for line in report["returns"]:
        reached = ", ".join(f"{value:,.0f}" for value in line["returns"])
        cells = [line["title"], line["library"], f"{line['env_steps']:,}", f"{line['updates']:,}", reached]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", *(f"- {text}" for text in told_returns(report["returns"])), ""]


def told_returns(lines: list[dict[str, Any]]) -> list[str]:
    """Where the seeds of a peer reach other returns than ours, judged by their ranges."""
    ours = {line["case"]: line["returns"] for line in lines if line["library"] == "ours"}
    found = []
    for line in lines:
        if line["library"] == "ours":
            continue
        mine, theirs = ours[line["case"]], line["returns"]
        verdict = "the ranges overlap"
        if min(mine) > max(theirs):
            verdict = "**every seed of ours is above every one of theirs**"
        elif max(mine) < min(theirs):
            verdict = "**every seed of ours is below every one of theirs**"
        means = f"mean {statistics.mean(mine):,.0f} against {statistics.mean(theirs):,.0f}"
        found.append(f"{line['title']}, {line['library']}: {means}, {verdict}")
    return found


def slots(report: dict[str, Any]) -> list[str]:
    lines = [
        "## The size of the replay",
        "DQN 8 : 1 with the replay almost full. Nothing of the replay's size is copied or scanned, so only "
        "the caches should have an effect (goal: at most "
        f"{report['slots']['goal']}× slower from first to last).",
        "",
        circumstances(train.facts_of(report, "slots")),
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
        circumstances(train.facts_of(report, "priorities")),
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
        "Double DQN, 8 environments : 1 update, batch 128, one thread, CPU µs (`jaxrl-hpc bench pieces`). "
        f"The bound is the floating-point work of the matrix products at {rate:.0f} GFLOP/s, the best that "
        "a large product reached on this core. *Rest* is what the pieces, run alone, do not account for: the "
        "loop, small copies, metrics, and probably caches that a piece alone has to itself.",
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
    parts = (f"{line['part_of_bound']:.1%}" for line in report["lines"])
    lines += ["| arithmetic bound | " + " | ".join(bounds) + " |"]
    lines += ["| bound / measured | " + " | ".join(parts) + " |", ""]
    lines += [f"- {text}" for text in told_bounds(report)]
    if "ppo" in report:
        ppo = report["ppo"]
        lines += [
            "",
            f"The bound of an iteration of PPO is its matrix products, {ppo['flops'] / 1e9:.1f} billion "
            f"operations: {ppo['bound_milliseconds']:.1f} ms at {ppo['flops_per_second'] / 1e9:.0f} GFLOP/s, "
            f"the best rate of products of its shape ({ppo['rows']:,} × {ppo['width']} by {ppo['width']} × "
            f"{ppo['width']}). Its goal was set on another processor: 36 ms, where the bound was 27. "
            + circumstances(ppo),
        ]
    return [*lines, ""]


def told_bounds(report: dict[str, Any]) -> list[str]:
    """What wide layers and PPO reach of their arithmetic bounds, beside the goals."""
    goal = profile.BOUND_GOAL
    found = [
        f"Width {line['width']}: {line['part_of_bound']:.2%} of the arithmetic bound, goal {goal:.0%}: "
        f"{'reached' if line['part_of_bound'] >= goal else 'missed'}"
        for line in report["lines"]
        if line["width"] >= profile.WIDE
    ]
    if ppo := report.get("ppo"):
        times = ppo["milliseconds"] / ppo["bound_milliseconds"]
        verdict = "reached" if times <= profile.PPO_GOAL else "missed"
        found.append(
            f"{ppo['title']}: {ppo['milliseconds']:.1f} ms of CPU an iteration on one core, {times:.2f}× the "
            f"bound, goal {profile.PPO_GOAL:.2f}×: {verdict}"
        )
    return found


def tried(report: dict[str, Any]) -> list[str]:
    lines = [
        "## What was tried",
        "Single changes to the programs, measured in turns with the programs as they are, each in a process "
        "held to one core (`python scripts/studies/candidates.py`). *Cost*: CPU time of an update with the "
        "change over that without, median over rounds with extremes. For an optimisation in use the change "
        "is to take it out, so a cost above 1 is what it saves; what is not in use would have to be below 1.",
        "",
        circumstances(report),
        "",
    ]
    for in_use, title in ((True, "in use, taken out"), (False, "not in use, put in")):
        lines += [f"| {title} | work | µs as it is | µs with the change | cost |", "|---|---|---|---|---|"]
        for case in report["cases"]:
            before = f"{case['as_it_is']['cpu_microseconds_per_update']:,.1f}"
            for line in case["lines"]:
                if line["in_use"] == in_use:
                    after, cost = f"{line['cpu_microseconds_per_update']:,.1f}", line["cost"]
                    spread = f"**{cost['median']:.2f}×** ({cost['low']:.2f}–{cost['high']:.2f})"
                    lines.append(f"| {line['what']} | {case['title']} | {before} | {after} | {spread} |")
        lines.append("")
    return [*lines, *(f"- {text}" for text in NOT_MEASURED), ""]


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


def missed(reports: dict[str, dict[str, Any]]) -> list[str]:
    """Goals that the measurements below do not reach."""
    goals = [line for kind in ("train", "atari") if kind in reports for line in told_goals(reports[kind])]
    goals += told_bounds(reports["pieces"]) if "pieces" in reports else []
    goals += start_bench.goals(reports["start"]["lines"]) if "start" in reports else []
    found = [f"- {line.removesuffix(': missed')}" for line in goals if line.endswith(": missed")]
    if "returns" in reports:
        lines = told_returns(reports["returns"]["returns"])
        found += [f"- the same return for the same work: {line}" for line in lines if "is below" in line]
    return ["## Goals that are missed", *found, ""] if found else []


def page(reports: dict[str, dict[str, Any]]) -> str:
    lines = [
        "# Performance",
        "",
        "Written by `python scripts/studies/performance.py` from measurements in `docs/data/`; with "
        "`--measure` it repeats them. Replay memories have a page of their own: "
        "[results/replay.md](results/replay.md).",
        "",
        *missed(reports),
    ]
    sections = {
        "train": training,
        "atari": atari,
        "returns": returns,
        "slots": slots,
        "priorities": priorities,
        "pieces": pieces,
        "candidates": tried,
        "growth": growth,
        "start": start,
        "threads": threads,
    }
    for kind, section in sections.items():
        lines += section(reports[kind]) if kind in reports else []
    if absent := [kind for kind in PAGE_KINDS if kind not in reports]:
        lines += ["## Not measured", f"There are no figures yet of: {', '.join(absent)}.", ""]
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
    reports = {
        kind: json.loads(data_file(kind).read_text()) for kind in PAGE_KINDS if data_file(kind).exists()
    }
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
