"""How synchronous training scales: measured on this machine, modelled beyond it.

    python scripts/studies/scaling.py [--measure] [--only ppo_weak]

--measure runs `jaxrl-hpc scaling` for each case and keeps its report as docs/data/scaling_<case>.json;
without it the page docs/results/scaling.md and its pictures are made anew from these files. A case takes
two to four minutes on a calm machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl_hpc.scaling import figure

ROOT = Path(__file__).resolve().parents[2]
DATA, RESULTS = ROOT / "docs" / "data", ROOT / "docs" / "results"
PPO, DQN = "workflows/cartpole_ppo_sharded", "workflows/cartpole_dqn_sharded"
CASES = {
    "ppo_weak": ("PPO, weak", [PPO, "--ranks", "1,2", "--rounds", "3"]),
    "dqn_weak": ("DQN with one prioritised replay, weak", [DQN, "--ranks", "1,2", "--rounds", "3"]),
    "ppo_strong": (
        "PPO, strong, all layouts",
        [PPO, "--ranks", "1,2", "--devices", "1,2", "--mode", "strong", "--rounds", "3", "--seconds", "2"],
    ),
}


class Goal(NamedTuple):
    """What a row of a case should reach, counted against separate runs side by side."""

    case: str
    ranks: int
    devices: int
    least: float
    text: str


GOALS = (
    Goal("ppo_weak", 2, 1, 0.95, "PPO, weak, 1 → 2 ranks"),
    Goal("ppo_strong", 2, 1, 0.90, "PPO, strong, 1 → 2 ranks"),
    Goal("ppo_strong", 1, 2, 0.85, "PPO, strong, 1 × 2 devices"),
    Goal("dqn_weak", 2, 1, 0.80, "DQN with one prioritised replay, weak, 1 → 2 ranks"),
)
SMALL = 100_000  # bytes up to which the goal for collectives holds


def data_file(case: str) -> Path:
    return DATA / f"scaling_{case}.json"


def measure(case: str) -> None:
    folder = ROOT / "runs" / "studies" / "scaling" / case
    command = [sys.executable, "-m", "jaxrl_hpc.cli.main", "scaling", *CASES[case][1], "--out", str(folder)]
    subprocess.run(command, check=True)
    data_file(case).write_text((folder / "scaling.json").read_text())


def disturbed(report: dict[str, Any]) -> bool:
    """Whether more was running than the layouts themselves explain."""
    facts = report["machine"]
    workers = max(row["ranks"] * row["devices"] for row in report["rows"])
    return facts["load"] > max(facts["cores"], workers) + 1


def goals(reports: dict[str, dict[str, Any]]) -> list[str]:
    """The goals of the project beside what was found."""
    lines = ["| goal | found | verdict |", "|---|---|---|"]
    for goal in GOALS:
        if goal.case not in reports:
            continue
        rows = [
            row
            for row in reports[goal.case]["rows"]
            if (row["ranks"], row["devices"]) == (goal.ranks, goal.devices)
        ]
        best = max(rows, key=lambda row: row["efficiency_beside"])
        found = ", ".join(
            f"{row['engine'] or 'one process'} {100 * row['efficiency_beside']:.1f} %" for row in rows
        )
        missing = 100 * (goal.least - best["efficiency_beside"])
        verdict = "met" if missing <= 0 else f"**missed** by {missing:.1f} points"
        if disturbed(reports[goal.case]):
            verdict += ", while other work ran"
        lines.append(f"| {goal.text} ≥ {100 * goal.least:.0f} % | {found} | {verdict} |")
    if "ppo_weak" in reports:
        both = reports["ppo_weak"]["collectives"]["2 × 1 mpi"]
        ratios = {int(s): both["inside"][s] / both["raw"][s] for s in both["inside"]}
        worst = max(ratio for size, ratio in ratios.items() if size <= SMALL)
        verdict = "met" if worst <= 2 else "**missed**"
        lines.append(
            f"| a collective in the loop ≤ 2 × mpi4py up to 100 KB | at most {worst:.2f} × | {verdict} |"
        )
        lines.append(f"| 10 MB: reported | {ratios[10_000_000]:.2f} × | |")
    return lines


def describe(name: str, report: dict[str, Any]) -> list[str]:
    flow, network = report["config"]["workflow"], report["network"]
    per_iteration = report["rows"][0]["env_steps_per_second"] * report["rows"][0]["milliseconds"] / 1e3
    sent = ", ".join(
        f"{m['times']} × {m['kind']} of {4 * m['length']:,} bytes a shard" for m in report["messages"]
    )
    facts, noisy = report["machine"], disturbed(report)
    lines = [
        f"One worker alone: {report['compute_milliseconds']:.3f} ms for an iteration of "
        f"{per_iteration:,.0f} steps; standard deviation of one iteration "
        f"{report['jitter_milliseconds']:.3f} ms. It sends {sent}.",
        "",
        figure.table(report),
        "",
        f"The second table is the model's: nodes with one such worker each and {flow['shards']} more shards "
        f"per node, a network with {1e6 * network['latency']:.1f} µs and "
        f"{network['bandwidth'] / 1e9:.1f} GB/s. Nothing of it was measured.",
        "",
        f"Measured on {facts['processor']}, {facts['cores']} cores, load {facts['load']:.1f} at the end"
        + (": **other work ran at the same time; measure again on a quiet machine**." if noisy else "."),
    ]
    return [f"## {name}", "", *lines, ""]


def page(reports: dict[str, dict[str, Any]]) -> str:
    lines = [
        "# Scaling of synchronous training",
        "",
        "Made by `python scripts/studies/scaling.py --measure`.",
        "",
        "The workflow `sharded` on one and more ranks and devices of one machine, on both engines, in turns, "
        "medians over chunks; collectives measured alone, inside a compiled loop and by the MPI library "
        "itself; and what a model fitted to that expects of more nodes.",
        "",
        "Efficiency is counted against as many separate one-worker runs side by side on the same cores: two "
        "busy cores are worth less than twice one, whatever runs on them. Beside it stands efficiency "
        "against one run alone. Waiting for the slowest is measured on the separate runs: by how much one "
        "of them is later than their mean from one moment to the next, which is time that synchronous runs "
        "wait without any message being slow. Core time is that of all ranks; ranks that wait keep their "
        "core busy.",
        "",
        *goals(reports),
        "",
    ]
    for case, report in reports.items():
        heading, blank, *rest = describe(CASES[case][0], report)
        lines += [heading, blank, f"![{CASES[case][0]}](scaling_{case}.png)", "", *rest]
    if "ppo_weak" in reports:
        lines += ["## Collectives", "", figure.collectives_table(reports["ppo_weak"]), ""]
        lines += [
            "In the loop means an allreduce by the engine and a scaling of the result, inside `fori_loop`; "
            "mpi4py does the same to a NumPy array in place. Large messages pay for a copy: the compiled "
            "program's allreduce is not in place.",
            "",
        ]
    lines += ["More workers than cores take turns; efficiency against one alone then counts cores."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--only", choices=list(CASES), help="measure one case")
    options = parser.parse_args()
    for case in CASES if options.measure else []:
        if options.only in (None, case):
            measure(case)
    reports = {c: json.loads(data_file(c).read_text()) for c in CASES if data_file(c).exists()}
    # without separate runs side by side there is nothing to count efficiency by: to be measured again
    reports = {c: report for c, report in reports.items() if "engine" in report["rows"][0]}
    for case, report in reports.items():
        figure.draw(report, RESULTS / f"scaling_{case}.png")
    (RESULTS / "scaling.md").write_text(page(reports))
    print(f"wrote {RESULTS / 'scaling.md'}")


if __name__ == "__main__":
    main()
