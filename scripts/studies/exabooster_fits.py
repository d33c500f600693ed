"""How controllers hold over the three plant fits of ExaBooster, and what domain randomisation brings.

    python scripts/studies/exabooster_fits.py           train, play, write the page
    python scripts/studies/exabooster_fits.py --page    write it from docs/data/exabooster_fits.json

Trains the shipped PPO config on each plant fit and on all three (finished runs are skipped, broken ones
resumed), plays every one of them on every fit, stores the scores and writes docs/results/exabooster_fits.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from jaxrl_hpc.metrics.units import count
from jaxrl_hpc.report.plots import note, spread_note
from jaxrl_hpc.report.style import MATPLOTLIB, REFERENCE, color
from jaxrl_hpc.runs.directory import RunDirectory
from jaxrl_hpc.runtime.evaluation import evaluate_run

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
DATA = ROOT / "docs" / "data" / "exabooster_fits.json"
RUNS = ROOT / "runs" / "studies" / "exabooster_fits"
SEEDS, EPISODES, FITS = 8, 512, (0, 1, 2)
TRAINED = {
    "fit 0": "env.fit=0",
    "fit 1": "env.fit=1",
    "fit 2": "env.fit=2",
    "all three": "env.domain_randomisation=true",
}


def folder(name: str) -> Path:
    return RUNS / name.replace(" ", "_")


def command(name: str) -> list[str]:
    settings = [TRAINED[name], f"run.seeds={SEEDS}", f"run.name=exabooster_fits.{folder(name).name}"]
    return [
        "train",
        "exabooster_ppo",
        *settings,
        "--run-dir",
        str(folder(name).relative_to(ROOT)),
        "--resume",
    ]


def train_all() -> None:
    for name in TRAINED:
        print("+ jaxrl-hpc", *command(name), flush=True)
        subprocess.run([sys.executable, "-m", "jaxrl_hpc.cli.main", *command(name)], cwd=ROOT, check=True)


def play_all() -> None:
    """Every policy on every fit."""
    kept = ("eval_improvement_score", "eval_improvement_interval")
    played = {}
    for name in TRAINED:
        overrides = ["env.domain_randomisation=false"]
        results = [
            evaluate_run(folder(name), EPISODES, overrides=[*overrides, f"env.fit={fit}"]) for fit in FITS
        ]
        played[name] = [{key: result[key] for key in kept} for result in results]
    summaries = {name: RunDirectory(folder(name)).read_summary() or {} for name in TRAINED}
    commits = {name: str(summary["commit"])[:10] for name, summary in summaries.items()}
    steps = count(summaries["fit 0"]["env_steps"])
    DATA.write_text(json.dumps({"played": played, "commits": commits, "steps": steps}, indent=1) + "\n")


def figure_of(played: dict[str, list[dict[str, Any]]]) -> Figure:
    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(8.0, 3.4), layout="constrained")
        panel = figure.subplots()
        width = 0.8 / len(played)
        for index, (name, results) in enumerate(played.items()):
            places = np.arange(len(FITS)) + (index - (len(played) - 1) / 2) * width
            heights = np.array([result["eval_improvement_score"] for result in results])
            low, high = np.array([result["eval_improvement_interval"] for result in results]).T
            spread = np.maximum([heights - low, high - heights], 0.0)
            label = f"trained on {name}"
            panel.bar(places, heights, 0.92 * width, yerr=spread, color=color(index), label=label, capsize=2)
        panel.axhline(1.0, color=REFERENCE, linewidth=0.9)
        panel.set_xticks(range(len(FITS)), [f"played on fit {fit}" for fit in FITS])
        panel.set_ylabel("Improvement (factor)")
        figure.legend(ncols=4, loc="outside lower left", fontsize=9)
        figure.suptitle(
            f"ExaBooster-v0 · PPO · {SEEDS} seeds", x=0.01, ha="left", fontsize=11, fontweight="bold"
        )
        note(figure, spread_note([SEEDS]))
    return figure


def write_page() -> None:
    stored = json.loads(DATA.read_text())
    played = stored["played"]
    figure_of(played).savefig(RESULTS / "exabooster_fits.png", dpi=110)
    rows = []
    for name, results in played.items():
        cells = [
            f"{r['eval_improvement_score']:.3f} [{r['eval_improvement_interval'][0]:.3f}, "
            f"{r['eval_improvement_interval'][1]:.3f}]"
            for r in results
        ]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    lines = [
        "# ExaBooster: transfer between plant fits",
        "",
        "Made by `python scripts/studies/exabooster_fits.py`. The recording's statistics fit a ridge of "
        "plants; the environment ships three of them, which look alike under the regulator but respond "
        "differently to actions. PPO was trained on each and on all three (`env.domain_randomisation=true`), "
        f"{SEEDS} seeds of {stored['steps']} steps, and played on each for {EPISODES} episodes a "
        f"seed: improvement factor over the regulator of that plant, IQM and 95 % interval over seeds."
        + f" {stored.get('remark', '')}".rstrip(),
        "",
        "![improvement factors](exabooster_fits.png)",
        "",
        "| trained on | " + " | ".join(f"on fit {fit}" for fit in FITS) + " |",
        "|---|" + "---|" * len(FITS),
        *rows,
        "",
        "| trained on | command | commit |",
        "|---|---|---|",
        *(
            f"| {name} | `jaxrl-hpc {' '.join(command(name))}` | `{stored['commits'][name]}` |"
            for name in played
        ),
    ]
    (RESULTS / "exabooster_fits.md").write_text("\n".join(lines) + "\n")
    print("wrote docs/results/exabooster_fits.md")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--page", action="store_true", help="only write the page, from the stored scores")
    args = parser.parse_args()
    if not args.page:
        train_all()
        play_all()
    write_page()


if __name__ == "__main__":
    main()
