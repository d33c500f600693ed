"""Curves of studies as small files, so that figures can be drawn again without training again.

    python scripts/studies/curves.py         redraw every figure of docs/data/curves

A study stores what its figure shows: of every entry the final and earlier evaluations of each seed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from jaxrl_hpc.report.data import RunData

ROOT = Path(__file__).resolve().parents[2]
CURVES = ROOT / "docs" / "data" / "curves"
RESULTS = ROOT / "docs" / "results"
EARLIER_FIGURE = (
    "*An earlier figure; its runs are no longer stored. Bands are percentile bootstraps, which are "
    "[a little too narrow](intervals.md).*"
)


def store(
    study: str,
    script: str,
    runs: Iterable[RunData],
    metric: str = "eval_return",
    keep: Collection[str] = (),
    **more: Any,
) -> None:
    """`keep`: names of runs whose stored curves stay if they are not among `runs`; `more`: of the figure."""
    entries = []
    for run in runs:
        seeds = [
            {
                "seed": one.seed,
                **{name: _rounded(getattr(one, name)) for name in ("steps", "minutes", "values")},
            }
            for one in run.seed_curves("eval", metric)
        ]
        entries.append({"name": run.name, "env": run.env, "agent": run.agent, "seeds": seeds})
    path, new = CURVES / f"{study}.json", {entry["name"] for entry in entries}
    if keep and path.exists():
        stored = json.loads(path.read_text())["runs"]
        entries += [entry for entry in stored if entry["name"] in keep and entry["name"] not in new]
    CURVES.mkdir(parents=True, exist_ok=True)
    content = {"script": script, "metric": metric, **more, "runs": entries}
    path.write_text(json.dumps(content, separators=(",", ":")) + "\n")


def stored_names(study: str) -> set[str]:
    """Of runs whose curves are stored."""
    path = CURVES / f"{study}.json"
    return {run["name"] for run in json.loads(path.read_text())["runs"]} if path.exists() else set()


def load(study: str) -> tuple[list[RunData], str]:
    """The runs as far as their figure needs them, and the metric."""
    content = json.loads((CURVES / f"{study}.json").read_text())
    metric = str(content["metric"])
    return [_run(entry, metric) for entry in content["runs"]], metric


def _run(entry: dict[str, Any], metric: str) -> RunData:
    columns: dict[str, list[Any]] = {"seed": [], "kind": [], "env_steps": [], "wall_seconds": [], metric: []}
    for one in entry["seeds"]:
        rows = len(one["steps"])
        columns["seed"] += [one["seed"]] * rows
        columns["kind"] += ["eval"] * rows
        columns["env_steps"] += one["steps"]
        columns["wall_seconds"] += [60 * minutes for minutes in one["minutes"]]
        columns[metric] += one["values"]
    config = {"env": {"name": entry["env"]}, "agent": {"name": entry["agent"]}}
    return RunData(entry["name"], Path(entry["name"]), config, {}, pa.table(columns))


def _rounded(values: Sequence[float] | np.ndarray) -> list[float]:
    return [int(v) if float(v).is_integer() else float(f"{v:.5g}") for v in values]


if __name__ == "__main__":
    import importlib

    for path in sorted(CURVES.glob("*.json")):
        script = importlib.import_module(json.loads(path.read_text())["script"])
        script.figure_of(path.stem).savefig(RESULTS / f"{path.stem}.png", dpi=110)
        print(f"drew docs/results/{path.stem}.png")
