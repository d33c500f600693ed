"""Does V-trace help when actors lag behind? A2C on CartPole-v1, acting with parameters L unrolls old.

    python scripts/studies/vtrace_lag.py [--seeds 8] [--steps 500000] [--runs runs/studies/vtrace_lag]

Trains A2C with and without V-trace for several lags (trials that are finished are not run again) and
writes docs/results/vtrace_lag.md and .png.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from jaxrl_hpc import config
from jaxrl_hpc.ops.statistics import bootstrap_interval, interquartile_mean
from jaxrl_hpc.report.data import RunData, load_run
from jaxrl_hpc.report.plots import draw_curve
from jaxrl_hpc.report.style import MATPLOTLIB, color
from jaxrl_hpc.runtime.train import train

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
LAGS = (0, 8, 32)
SOLVED = 475
WAYS = {True: "V-trace", False: "no correction"}


def overrides(vtrace: bool, lag: int, seeds: int, steps: int) -> list[str]:
    return [
        f"agent.vtrace={str(vtrace).lower()}",
        f"workflow.actor_lag={lag}",
        f"run.seeds={seeds}",
        f"run.total_env_steps={steps}",
        f"run.eval_every={steps // 15}",
        "run.tensorboard=false",
    ]


def run_all(folder: Path, seeds: int, steps: int) -> dict[tuple[bool, int], RunData]:
    found = {}
    for lag in LAGS:
        for vtrace in WAYS:
            path = folder / f"lag{lag}_{'vtrace' if vtrace else 'plain'}"
            outcome = train(
                config.load("cartpole_a2c", overrides(vtrace, lag, seeds, steps)), path, resume=True
            )
            if not outcome.finished:
                raise SystemExit(75)
            found[vtrace, lag] = load_run(path)
    return found


def figure_of(runs: dict[tuple[bool, int], RunData]) -> Figure:
    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(10.0, 3.4), layout="constrained")
        panels = figure.subplots(1, len(LAGS), sharey=True)
        for panel, lag in zip(panels, LAGS, strict=True):
            for index, vtrace in enumerate(WAYS):
                draw_curve(panel, runs[vtrace, lag], "eval", "eval_return", "env_steps", color(index))
            panel.set_title(f"{lag} unrolls behind")
            panel.set_xlabel("Environment steps")
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        panels[0].set_ylabel("Evaluation return")
        # the lines of single seeds carry no label of their own
        lines = [line for line in panels[0].get_lines() if not str(line.get_label()).startswith("_")]
        panels[0].legend(lines, list(WAYS.values()))
    return figure


def verdict(runs: dict[tuple[bool, int], RunData]) -> str:
    """A sentence per lag, from the numbers."""
    parts = []
    for lag in LAGS[1:]:
        ends = {way: list(runs[way, lag].summary["eval_return_per_seed"].values()) for way in WAYS}
        solved = {way: sum(value >= SOLVED for value in values) for way, values in ends.items()}
        parts.append(
            f"{lag} unrolls behind, {solved[True]} of {len(ends[True])} seeds are solved with V-trace and "
            f"{solved[False]} without"
        )
    return "; ".join(parts) + "."


def page(runs: dict[tuple[bool, int], RunData]) -> str:
    any_run = next(iter(runs.values()))
    flow, steps = any_run.config["workflow"], any_run.config["run"]["total_env_steps"]
    unroll = flow["num_envs"] * flow["unroll_length"]
    rows = []
    for (vtrace, lag), run in runs.items():
        final = list(run.summary["eval_return_per_seed"].values())
        overall = [y.mean() for _, y in run.per_seed("eval", "eval_return", "env_steps")]
        solved = sum(value >= SOLVED for value in final)
        cells = [
            f"{interquartile_mean(values):.0f} ({low:.0f} … {high:.0f})"
            for values in (final, overall)
            for low, high in [bootstrap_interval(values)]
        ]
        weight = run.curve("train", "rho").value
        spread = f"{weight.min():.3f} … {weight.max():.3f}"
        share = f"{solved} of {len(final)}"
        rows.append(f"| {lag} | {WAYS[vtrace]} | {cells[0]} | {share} | {cells[1]} | {spread} |")
    commits = sorted({str(run.summary["commit"])[:10] for run in runs.values()})
    return "\n".join(
        [
            "# V-trace and policy lag",
            "",
            "Made by `python scripts/studies/vtrace_lag.py`.",
            "",
            f"A2C on CartPole-v1 (`configs/cartpole_a2c.yaml`), {len(any_run.seeds)} seeds, {steps:,} steps. "
            f"With `workflow.actor_lag=L` the policy that acts is L unrolls of {unroll} steps old: the "
            "learner is off-policy by a known amount. V-trace weights each step by the clipped ratio of "
            "present to acting policy; without it the data is taken for on-policy data.",
            "",
            "![curves](vtrace_lag.png)",
            "",
            "Greedy evaluation return, interquartile mean over seeds with 95 % bootstrap interval: after the "
            f"last update, and averaged over the run; seeds that end with {SOLVED} or more. The last column "
            "is the range over the run of the mean importance ratio (1 on policy).",
            "",
            "| unrolls behind | targets | at the end | solved | over the run | importance ratio |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
            "EXARL reported that A2C with V-trace solves CartPole under policy lag and A2C without it does "
            f"not. Here: {verdict(runs)}",
            "",
            f"Commit: {', '.join(f'`{commit}`' for commit in commits)}.",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=500_000)
    parser.add_argument("--runs", type=Path, default=Path("runs/studies/vtrace_lag"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    runs = run_all(options.runs, options.seeds, options.steps)
    options.results.mkdir(parents=True, exist_ok=True)
    figure_of(runs).savefig(options.results / "vtrace_lag.png")
    (options.results / "vtrace_lag.md").write_text(page(runs))
    print(f"wrote {options.results / 'vtrace_lag.md'}")


if __name__ == "__main__":
    main()
