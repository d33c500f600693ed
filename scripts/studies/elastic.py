"""Elastic runs with actors that are killed, leave and are replaced, beside runs that nothing happens to.

    python scripts/studies/elastic.py --seeds 10        runs, about 4 minutes a seed on two cores
    python scripts/studies/elastic.py --page            write docs/results/elastic.md from its JSON

Both kinds train workflows/cartpole_impala_elastic with two actors at a time. In a disturbed run 20 actors are
killed and 4 leave, after numbers of unrolls drawn at random, and each is replaced by another process. Every
run's accounts are checked (tests/workflows/elastic_jobs.py). Runs that are in its JSON stay.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

import numpy as np  # noqa: E402
from comparison import text  # noqa: E402

from jaxrl_hpc.bench.interleave import machine_facts  # noqa: E402
from jaxrl_hpc.ops.comparison import difference  # noqa: E402
from jaxrl_hpc.ops.statistics import score, score_text  # noqa: E402
from jaxrl_hpc.runs.directory import code_version  # noqa: E402
from tests.workflows import elastic_jobs  # noqa: E402

DATA, PAGE = (ROOT / "docs" / "results" / f"elastic.{kind}" for kind in ("json", "md"))
CONFIG = ROOT / "configs" / "workflows" / "cartpole_impala_elastic.yaml"
STEPS_PER_UNROLL = 8 * 16
KILLS, LEAVES, LONGEST, AT_ONCE = 20, 4, 120, 2
SECONDS = 3600.0


def run(kind: str, seed: int, folder: Path) -> dict[str, Any]:
    """One run -> its row."""
    fates = elastic_jobs.lives(KILLS, LEAVES, LONGEST, seed) if kind == "disturbed" else []
    settings = [f"run.seed={seed}", "run.record_schedule=true", "run.tensorboard=false"]
    began = time.perf_counter()
    with elastic_jobs.processes() as started:
        learner = elastic_jobs.LearnerProcess(CONFIG, folder, *settings)
        started.append(learner)
        elastic_jobs.disturb(folder, fates, started, at_once=AT_ONCE, seconds=SECONDS)
        assert learner.finish(SECONDS) == 0, learner.text
    summary = elastic_jobs.accounts(folder, STEPS_PER_UNROLL)
    assert summary["lost_actors"] == len([how for _, how in fates if how != "leave"])
    kept = (
        *elastic_jobs.COUNTS,
        "learned_unrolls",
        "dropped_unrolls",
        "pending_unrolls",
        "eval_return_score",
    )
    row = {"kind": kind, "seed": seed, "seconds": time.perf_counter() - began}
    return row | {name: summary[name] for name in kept}


def measure(seeds: int) -> None:
    found = json.loads(DATA.read_text()) if DATA.exists() else {"runs": []}
    done = {(row["kind"], row["seed"]) for row in found["runs"]}
    for seed in range(seeds):
        for kind in ("undisturbed", "disturbed"):
            if (kind, seed) in done:
                continue
            with tempfile.TemporaryDirectory() as folder:
                row = run(kind, seed, Path(folder) / "run")
            found["runs"].append(row)
            found |= {"machine": machine_facts(), **code_version()}
            DATA.write_text(json.dumps(found, indent=1) + "\n")
            print(
                f"{kind}, seed {seed}: {row['eval_return_score']:.1f} in {row['seconds']:.0f} s", flush=True
            )


def page(found: dict[str, Any]) -> str:
    kinds = ("undisturbed", "disturbed")
    runs = {kind: [row for row in found["runs"] if row["kind"] == kind] for kind in kinds}
    scores = {kind: [row["eval_return_score"] for row in rows] for kind, rows in runs.items()}
    lines = [
        "# Actors that come and go",
        "",
        "Made by `python scripts/studies/elastic.py --page`. CartPole-v1 by IMPALA "
        "(`workflows/cartpole_impala_elastic`, 500k steps, two actors at a time), with actors that are "
        "killed and replaced, and without.",
        "",
        f"In each disturbed run {KILLS} actors were killed (before, after or while sending an "
        f"unroll) and {LEAVES} left, after 1 to {LONGEST} unrolls. In every run each acknowledged unroll was "
        "learned from exactly once, which is checked from the recorded order of arrivals.",
        "",
        f"| runs | seeds | final return: {score_text(len(found['runs']) // 2)} | actors joined, lost, left "
        "| unrolls acknowledged | learned from | too old | discarded |",
        "|---" * 8 + "|",
    ]
    for kind in kinds:
        if runs[kind]:
            value, low, high = score(scores[kind])
            total = {name: sum(row[name] for row in runs[kind]) for name in runs[kind][0] if "_" in name}
            actors = ", ".join(f"{total[f'{name}_actors']}" for name in ("joined", "lost", "left"))
            unrolls = ("acknowledged", "learned", "dropped", "discarded")
            counts = " | ".join(f"{total[f'{name}_unrolls']:,}" for name in unrolls)
            lines.append(
                f"| {kind} | {len(runs[kind])} | {value:.1f} [{low:.1f}, {high:.1f}] | {actors} | {counts} |"
            )
    if all(runs.values()):
        lines += [
            "",
            f"Disturbed − undisturbed, mean return at the end: "
            f"{text(difference(scores['disturbed'], scores['undisturbed']), 1)}.",
        ]
    seconds = {kind: np.median([row["seconds"] for row in rows]) for kind, rows in runs.items() if rows}
    times = ", ".join(f"{kind} {value:.0f} s" for kind, value in seconds.items())
    facts = found["machine"]
    lines += [
        "",
        f"Median time of a run, which says little on a machine that did other work: {times}. "
        f"{facts['processor']}, {facts['cores']} core{'s' * (facts['cores'] > 1)}; commit "
        f"`{str(found['commit'])[:10]}`.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--page", action="store_true")
    args = parser.parse_args()
    if not args.page:
        measure(args.seeds)
    PAGE.write_text(page(json.loads(DATA.read_text())))


if __name__ == "__main__":
    main()
