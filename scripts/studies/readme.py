"""Keeps the measured numbers of README.md up to date: python scripts/studies/readme.py

They come from docs/data/bench_train.json (speed), docs/results/chaos.json (kills) and the results pages.
Scripts that write those call this one.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from page_table import replaced  # beside this file

from jaxrl_hpc.bench import train

ROOT = Path(__file__).resolve().parents[2]
DOCS, README = ROOT / "docs", ROOT / "README.md"
BEGIN = "<!-- table: made by scripts/studies/readme.py -->"
EXACT = ("fused", "sharded", "offline")  # workflows that promise equal bits
SPEED = {"dqn_8": "DQN", "double_dqn_8": "double DQN", "ppo_64": "PPO", "td3": "TD3"}


def table() -> str:
    lines = ["| measured | result |", "|---|---|"]
    lines += [f"| {what} | {result} |" for what, result in (speed(), kills(), *learning())]
    return "\n".join(lines)


def speed() -> tuple[str, str]:
    """Medians of runs in turns."""
    report = json.loads((DOCS / "data" / "bench_train.json").read_text())
    best = {case["name"]: train.closest(case, "default", "rate") for case in report["cases"]}
    found = ", ".join(
        f"{name} {against['rate']['median']:.1f}× {against['peer']}"
        for case, name in SPEED.items()
        if (against := best.get(case))
    )
    return f"environment steps per second against the fastest peer, {report['machine']['cores']} cores", (
        f"{found} ([all, goals missed included](docs/performance.md))"
    )


def kills() -> tuple[str, str]:
    """Runs with faults, of the workflows that promise equal bits, over all recorded invocations."""
    cases = equal = 0
    for record in json.loads((DOCS / "results" / "chaos.json").read_text()):
        for workflow, found in record["groups"].get("kills", {}).items():
            if workflow in EXACT:
                cases += found["cases"]
                equal += found["verdicts"].get("equal bits", 0)
    return "runs killed, stopped or slowed at random moments and resumed, `fused`, `sharded` and `offline`", (
        f"{equal} of {cases} ended with the bits of an undisturbed run ([record](docs/results/chaos.md))"
    )


def learning() -> list[tuple[str, str]]:
    """Scores as the studies' pages state them."""
    wanted = (
        ("exabooster", "ppo", "ExaBooster, PPO: improvement over the machine's regulator, 1M steps"),
        ("cartpole", "ppo", "CartPole-v1, PPO: final return, of 500"),
    )
    return [(text, f"{score(page, entry)} ([study](docs/results/{page}.md))") for page, entry, text in wanted]


def score(page: str, entry: str) -> str:
    """The column of scores in a study's table, with the number of seeds."""
    lines = (DOCS / "results" / f"{page}.md").read_text().splitlines()
    head = next(line for line in lines if line.startswith("| entry |"))
    row = next(line for line in lines if line.startswith(f"| {entry} |"))
    cells = dict(zip(*([cell.strip() for cell in line.split("|")] for line in (head, row)), strict=True))
    value = next(cell for name, cell in cells.items() if re.match(r"score|IQM", name))
    return f"{value}, {cells['seeds']} seeds"


def with_table(text: str) -> str:
    return replaced(text, BEGIN, table())


def write() -> None:
    README.write_text(with_table(README.read_text()))


if __name__ == "__main__":
    write()
