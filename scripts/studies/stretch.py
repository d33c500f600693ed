"""One run on 4, then 2, then 1 ranks, beside uninterrupted runs (the Cray XC paper's 128 → 64 → 32).

    python scripts/studies/stretch.py [--steps 300000] [--seeds 3] [--runs runs/studies/stretch]

After a third of its budget a signal on one rank stops the run; it saves, and is resumed on half as many
ranks; again after two thirds. Writes docs/results/stretch.md and .png.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import curves  # beside this file
import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from jaxrl_hpc.cli.doctor_checks import find_mpiexec
from jaxrl_hpc.metrics.parquet import read_metrics, without_clock
from jaxrl_hpc.ops.statistics import FEW
from jaxrl_hpc.report.data import RunData, load_run
from jaxrl_hpc.report.plots import draw_curve, heading, note, spread_note
from jaxrl_hpc.report.style import MATPLOTLIB, PALETTE, REFERENCE, color

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
CONFIG = "workflows/cartpole_ppo_sharded"
PHASES = (4, 2, 1)  # ranks
CHUNK = 6_144  # environment steps, run.log_every of the config


def words(options: argparse.Namespace, deterministic: bool) -> list[str]:
    """What is trained."""
    return [
        CONFIG,
        f"workflow.deterministic={str(deterministic).lower()}",
        f"run.total_env_steps={options.steps}",
        f"run.seeds={options.seeds}",
        "run.tensorboard=false",
    ]


def command(folder: Path, ranks: int, training: Sequence[str]) -> list[str]:
    launcher = [str(find_mpiexec()), "-n", str(ranks)] if ranks > 1 else []
    train = [sys.executable, "-m", "jaxrl_hpc.cli.main", "train", *training]
    return [*launcher, *train, "--run-dir", str(folder), "--resume"]


def record_of(folder: Path) -> dict[str, Any]:
    """The latest status record of rank 0."""
    try:
        return json.loads((folder / "ranks" / "0.json").read_text())
    except (OSError, ValueError):
        return {}


def phase(folder: Path, ranks: int, until: int | None, training: Sequence[str]) -> float:
    """Train on so many ranks up to a chunk (None: to the end); seconds it took, starting included."""
    begun = time.perf_counter()
    process = subprocess.Popen(command(folder, ranks, training))
    while until is not None and process.poll() is None:
        record = record_of(folder)
        if record.get("phase") == "training" and record["chunk"] >= until:
            os.kill(record["pid"], signal.SIGUSR1)
            break
        time.sleep(0.02)
    status = process.wait()
    if status not in (0, 75):
        raise SystemExit(f"{ranks} ranks ended with code {status}")
    return time.perf_counter() - begun


def stretched(folder: Path, options: argparse.Namespace, exact: bool) -> list[dict[str, Any]]:
    """The run in phases; what each took. A finished one is read again."""
    notes = folder.with_suffix(".json")
    if notes.exists():
        return json.loads(notes.read_text())
    shutil.rmtree(folder, ignore_errors=True)
    chunks = options.steps // CHUNK
    rows = []
    for number, ranks in enumerate(PHASES):
        until = chunks * (number + 1) // len(PHASES) if number + 1 < len(PHASES) else None
        seconds = phase(folder, ranks, until, words(options, exact))
        trained = read_metrics(folder)
        rows.append({"ranks": ranks, "seconds": seconds, "env_steps": max(trained["env_steps"].to_pylist())})
    notes.write_text(json.dumps(rows))
    return rows


def fixed(folder: Path, ranks: int, options: argparse.Namespace, exact: bool) -> None:
    if not (folder / "summary.json").exists():
        phase(folder, ranks, None, words(options, exact))


def figure_of(study: str) -> Figure:
    """From the stored curves: runs that have to agree to the bit on the left, the others on the right."""
    runs, _ = curves.load(study)
    exact = {run.name.partition(",")[0]: run for run in runs if run.name.endswith("deterministic")}
    fast = {run.name: run for run in runs if not run.name.endswith("deterministic")}
    marks = json.loads((curves.CURVES / f"{study}.json").read_text())["marks"]
    return drawn(heading(runs), {"deterministic": exact, "as fast as possible": fast}, marks)


def drawn(title: str, panels: dict[str, dict[str, RunData]], marks: list[int]) -> Figure:
    """Curves of the runs, with dotted lines where the number of ranks changed."""
    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(9.2, 3.6), layout="constrained")
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        shades = iter(range(len(PALETTE)))
        handles: dict[str, Line2D] = {}
        for panel, (kind, runs) in zip(axes, panels.items(), strict=True):
            for place, (name, run) in enumerate(runs.items()):
                before = len(panel.get_lines())
                draw_curve(panel, run, "eval", "eval_return", "env_steps", color(next(shades)))
                line = next(one for one in panel.get_lines()[before:] if one.get_label()[0] != "_")
                if (
                    place == 0 and kind == "deterministic"
                ):  # wider, so that it is seen below a second one that is equal
                    line.set_linewidth(3 * line.get_linewidth())
                    line.set_alpha(0.5)
                handles[f"{name}, {kind}" if kind else name] = line
            for mark in marks:
                panel.axvline(mark, color=REFERENCE, linestyle=":", linewidth=1.2)
            panel.set_title(kind[:1].upper() + kind[1:], fontsize=9.5)
            panel.set_xlabel("Environment steps")
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes[0].set_ylabel("Evaluation return")
        figure.legend(list(handles.values()), list(handles), loc="outside lower left", ncols=2, fontsize=8.5)
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        seeds = [len(run.seeds) for runs in panels.values() for run in runs.values()]
        note(figure, spread_note(seeds))
    return figure


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def page(options: argparse.Namespace, folders: dict[str, Path], exact: list[dict], fast: list[dict]) -> str:
    hashes = {name: summary(folder)["params_sha256"] for name, folder in folders.items()}
    same = hashes["stretched, deterministic"] == hashes["one rank, deterministic"]
    rows_same = str(without_clock(read_metrics(folders["stretched, deterministic"])).to_pylist()) == str(
        without_clock(read_metrics(folders["one rank, deterministic"])).to_pylist()
    )
    lines = [
        "# A run on a changing number of ranks",
        "",
        "Made by `python scripts/studies/stretch.py`.",
        "",
        f"One run of PPO on CartPole-v1 (`configs/{CONFIG}.yaml`), {options.seeds} seeds, {options.steps:,} "
        f"steps, on {' → '.join(map(str, PHASES))} ranks: at a third and at two thirds of the budget a "
        "signal on one rank makes all of them save the same step and stop; half as many resume the run.",
        "",
        "![curves](stretch.png)",
        "",
        'Dotted lines: the number of ranks changes ("stretched").',
        "",
        f"| run | final return | {'95 % interval' if options.seeds >= FEW else 'range of seeds'} | "
        "parameters, SHA-256 |",
        "|---|---|---|---|",
    ]
    for name, folder in folders.items():
        found = summary(folder)
        low, high = found["eval_return_interval"]
        lines.append(
            f"| {name} | {found['eval_return_score']:.1f} | {low:.1f} … {high:.1f} | `{hashes[name][:16]}` |"
        )
    verdict = "the same bits" if same and rows_same else "DIFFERENT results"
    lines += [
        "",
        "With `workflow.deterministic=true` the run on changing ranks and the undisturbed one have "
        f"{verdict}: parameters of all seeds and every row of the metrics. Without it sums are rounded in "
        "another order, small differences grow, and the curves differ as much as those of different seeds.",
        "",
        "| run | ranks | steps at the end of the phase | seconds, start and compilation included |",
        "|---|---|---|---|",
    ]
    for name, rows in (("deterministic", exact), ("fast", fast)):
        for row in rows:
            lines.append(f"| {name} | {row['ranks']} | {row['env_steps']:,} | {row['seconds']:.1f} |")
    cores = len(os.sched_getaffinity(0))
    lines += [
        "",
        f"The machine has {cores} cores: four ranks share them, so these times do not measure speed.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=Path("runs/studies/stretch"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    folders = {
        "stretched, deterministic": options.runs / "stretched",
        "one rank, deterministic": options.runs / "one",
        "stretched": options.runs / "stretched_fast",
        "two ranks": options.runs / "two_fast",
    }
    exact = stretched(folders["stretched, deterministic"], options, True)
    fixed(folders["one rank, deterministic"], 1, options, True)
    fast = stretched(folders["stretched"], options, False)
    fixed(folders["two ranks"], 2, options, False)
    runs = {name: load_run(folder) for name, folder in folders.items()}
    marks = [row["env_steps"] for row in exact[:-1]]
    options.results.mkdir(parents=True, exist_ok=True)
    named = [RunData(name, run.path, run.config, run.summary, run.table) for name, run in runs.items()]
    curves.store("stretch", "stretch", named, marks=marks)
    figure_of("stretch").savefig(options.results / "stretch.png", dpi=110)
    (options.results / "stretch.md").write_text(page(options, folders, exact, fast))
    print(f"wrote {options.results / 'stretch.md'}")


if __name__ == "__main__":
    main()
