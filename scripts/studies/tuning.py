"""Settings compared before a study, on seeds that the study does not report.

A comparison of agents is fair if each was tuned alike: the same axes, the same seeds, the same rule for the
choice. A `Tuning` is a sweep (docs/sweeps.md) over a shipped config; its table goes on the study's page.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from jaxrl_hpc import config as configs
from jaxrl_hpc.ops.statistics import score
from jaxrl_hpc.report.data import RunData, load_run

FIRST_SEED = 1000  # reported runs count from 0


class Tuning(NamedTuple):
    """One config and the settings that are varied."""

    name: str
    config: str
    axes: Mapping[str, Sequence[Any]]  # by dotted name, crossed
    overrides: tuple[str, ...] = ()
    seeds: int = 4


def write_spec(tuning: Tuning, folder: Path) -> Path:
    """The sweep file of a tuning."""
    base = configs.read_yaml(configs.find_file(tuning.config))
    for override in (*tuning.overrides, f"run.seed={FIRST_SEED}"):
        configs.apply_override(base, override)
    spec = {"name": tuning.name, "base": base, "seeds": tuning.seeds, "axes": dict(tuning.axes)}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{tuning.name}.yaml"
    path.write_text(yaml.safe_dump({**spec, "axes": {k: list(v) for k, v in tuning.axes.items()}}))
    return path


def train(tuning: Tuning, folder: Path) -> None:
    """All trials that have no result yet."""
    arguments = ["sweep", "run", str(write_spec(tuning, folder)), "--dir", str(folder / tuning.name)]
    print("+ jaxrl-hpc", *arguments, flush=True)
    subprocess.run([sys.executable, "-m", "jaxrl_hpc.cli.main", *arguments, "--jobs", "1"], check=True)


def mean_over_run(run: RunData, metric: str) -> list[float]:
    """Of each seed: its evaluations on the way, averaged. How soon it learns and how well, in one figure."""
    return [float(values.mean()) for _, values in run.per_seed("eval", metric, "env_steps")]


def training_return(run: RunData) -> list[float]:
    """Of each seed: the mean return of training episodes, which explore, over the last tenth of the run."""
    found = []
    for steps, values in run.per_seed("train", "episode_return", "env_steps"):
        found.append(float(values[steps > 0.9 * steps[-1]].mean()))
    return found


def results(tuning: Tuning, folder: Path, metric: str) -> dict[tuple[Any, ...], list[tuple[float, float]]]:
    """(over the run, at the end) of every seed, by the values of the axes."""
    found: dict[tuple[Any, ...], list[tuple[float, float]]] = defaultdict(list)
    for path in sorted((folder / tuning.name / "trials").glob("*")):
        run = load_run(path)
        settings = (run.setting(*axis.split(".")) for axis in tuning.axes)
        values = tuple(tuple(v) if isinstance(v, list) else v for v in settings)
        (final,) = run.summary[f"{metric}_per_seed"].values()
        found[values].append((mean_over_run(run, metric)[0], final))
    return found


def commits(tuning: Tuning, folder: Path) -> list[str]:
    """That trained the trials."""
    trials = (folder / tuning.name / "trials").glob("*")
    return sorted({str(load_run(path).summary["commit"])[:10] for path in trials})


def table(tuning: Tuning, folder: Path, metric: str = "eval_return", digits: int = 0) -> list[str]:
    """Lines of a page: best over the run first."""
    found = results(tuning, folder, metric)
    ranked = sorted(found, key=lambda values: -float(score(np.array(found[values])[:, 0]).value))
    lines = [
        "| " + " | ".join([tuning.name, *(f"`{axis}`" for axis in tuning.axes)]) + " | over the run | end |",
        "|---" * (len(tuning.axes) + 3) + "|",
    ]
    for values in ranked:
        over, end = (score(np.array(found[values])[:, i]) for i in (0, 1))
        cells = [f"{s.value:.{digits}f} [{s.low:.{digits}f}, {s.high:.{digits}f}]" for s in (over, end)]
        shown = [f"{v:g}" if isinstance(v, int | float) else str(v) for v in values]
        lines.append("| " + " | ".join([f"{len(found[values])} seeds", *shown, *cells]) + " |")
    return lines
