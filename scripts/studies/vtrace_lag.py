"""Does V-trace help when actors lag behind? A2C on CartPole-v1, acting with parameters L unrolls old.

    python scripts/studies/vtrace_lag.py [--page]

Both ways get the same chance: for every lag the step size is chosen for each way, on seeds that are not
reported; a smaller step lets the policy drift less while data is under way, and may do V-trace's work.
Trials and runs that are finished are not run again. Writes docs/results/vtrace_lag.md and .png.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import comparison  # these are beside this file
import matplotlib
import numpy as np
import tuning
from comparison import Comparison
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from tuning import Tuning

from jaxrl_hpc import config
from jaxrl_hpc.ops.statistics import score
from jaxrl_hpc.report.data import RunData, load_run
from jaxrl_hpc.report.plots import draw_curve
from jaxrl_hpc.report.style import MATPLOTLIB, color
from jaxrl_hpc.runtime.train import train

ROOT = Path(__file__).resolve().parents[2]
RESULTS, RUNS = ROOT / "docs" / "results", ROOT / "runs" / "studies" / "vtrace_lag"
LAGS = (0, 8, 32)
SOLVED, SEEDS = 475, 8
WAYS = {True: "V-trace", False: "no correction"}
STEP_SIZES = (2e-3, 1e-3, 5e-4)  # the first is the shipped config's
Case = tuple[bool, int]


def case_name(case: Case) -> str:
    return f"{'vtrace' if case[0] else 'plain'}_lag{case[1]}"


def settings(case: Case) -> tuple[str, ...]:
    vtrace, lag = case
    return (
        f"agent.vtrace={str(vtrace).lower()}",
        f"workflow.actor_lag={lag}",
        "run.eval_every=32_000",
        "run.tensorboard=false",
    )


def tuning_of(case: Case) -> Tuning:
    return Tuning(case_name(case), "cartpole_a2c", {"agent.learning_rate": STEP_SIZES}, settings(case))


def best_step_size(case: Case) -> float:
    """By the mean over the run, which the other seeds' page reports too."""
    found = tuning.results(tuning_of(case), RUNS / "tuning", "eval_return")
    return float(max(found, key=lambda values: np.mean([over for over, _ in found[values]]))[0])


def run_all(only_page: bool) -> dict[Case, dict[str, RunData]]:
    """The runs of every case, with the shipped step size and with the one chosen for it."""
    found: dict[Case, dict[str, RunData]] = {}
    for lag in LAGS:
        for vtrace in WAYS:
            case = (vtrace, lag)
            if not only_page:
                tuning.train(tuning_of(case), RUNS / "tuning")
            rates = {"shipped": STEP_SIZES[0], "tuned": best_step_size(case)}
            found[case] = {}
            for kind, rate in rates.items():
                path = RUNS / f"{case_name(case)}_{rate:g}"
                if not only_page:
                    changes = [*settings(case), f"agent.learning_rate={rate:g}", f"run.seeds={SEEDS}"]
                    if not train(config.load("cartpole_a2c", changes), path, resume=True).finished:
                        raise SystemExit(75)
                found[case][kind] = load_run(path)
    return found


def figure_of(runs: dict[Case, dict[str, RunData]]) -> Figure:
    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(10.0, 6.2), layout="constrained")
        panels = figure.subplots(2, len(LAGS), sharex=True, sharey=True)
        for row, kind in zip(panels, ("shipped", "tuned"), strict=True):
            for panel, lag in zip(row, LAGS, strict=True):
                for index, vtrace in enumerate(WAYS):
                    run = runs[vtrace, lag][kind]
                    draw_curve(panel, run, "eval", "eval_return", "env_steps", color(index))
                panel.set_title(f"{lag} unrolls behind, {kind} step size", fontsize=10)
                panel.xaxis.set_major_formatter(EngFormatter(sep=""))
            row[0].set_ylabel("Evaluation return")
        for panel in panels[-1]:
            panel.set_xlabel("Environment steps")
        # the lines of single seeds carry no label of their own
        lines = [line for line in panels[0, 0].get_lines() if not str(line.get_label()).startswith("_")]
        figure.legend(lines, list(WAYS.values()), loc="outside lower left", ncols=2)
    return figure


def final(run: RunData) -> list[float]:
    return list(run.summary["eval_return_per_seed"].values())


def row(case: Case, kind: str, run: RunData) -> str:
    cells = [
        f"{s.value:.0f} [{s.low:.0f}, {s.high:.0f}]"
        for s in (score(np.array(final(run))), score(np.array(tuning.mean_over_run(run, "eval_return"))))
    ]
    weight = run.curve("train", "rho").value  # type: ignore[union-attr]
    solved = f"{sum(value >= SOLVED for value in final(run))} of {len(final(run))}"
    rate = f"{run.setting('agent', 'learning_rate'):g}"
    spread = f"{weight.min():.3f} … {weight.max():.3f}"
    return f"| {case[1]} | {WAYS[case[0]]} | {kind}, {rate} | {cells[0]} | {solved} | {cells[1]} | {spread} |"


def compared(runs: dict[Case, dict[str, RunData]], kind: str) -> list[str]:
    """V-trace against none for every lag."""
    pairs = [
        Comparison(f"V-trace, lag {lag}", f"no correction, lag {lag}", f"V-trace; {kind} step sizes")
        for lag in LAGS
    ]
    named = {f"{WAYS[case[0]]}, lag {case[1]}": found[kind] for case, found in runs.items()}
    over_run = {name: tuning.mean_over_run(run, "eval_return") for name, run in named.items()}
    return comparison.table(pairs, over_run, {name: final(run) for name, run in named.items()}, 0)


def what_remains(runs: dict[Case, dict[str, RunData]]) -> str:
    """Where V-trace is shown to be better, in words."""

    def lags(kind: str, values: Callable[[RunData], list[float]]) -> str:
        pairs = {lag: [values(runs[way, lag][kind]) for way in WAYS] for lag in LAGS}
        found = [str(lag) for lag, pair in pairs.items() if comparison.difference(*pair).low > 0]
        return f"at lag {' and '.join(found)}" if found else "at no lag"

    def over_run(run: RunData) -> list[float]:
        return tuning.mean_over_run(run, "eval_return")

    shipped, tuned = ((lags(kind, over_run), lags(kind, final)) for kind in ("shipped", "tuned"))
    return (
        f"What remains: with one step size for all, V-trace is shown to be better {shipped[0]} over the run "
        f"and {shipped[1]} at the end. With a step size chosen for each way and lag, {tuned[0]} over the run "
        f"and {tuned[1]} at the end. With a smaller step the policy drifts less while data is under way, so "
        "that there is less to correct; V-trace spares that choice."
    )


def page(runs: dict[Case, dict[str, RunData]]) -> str:
    any_run = next(iter(runs.values()))["shipped"]
    flow, steps = any_run.config["workflow"], any_run.config["run"]["total_env_steps"]
    unroll = flow["num_envs"] * flow["unroll_length"]
    commits = sorted({str(r.summary["commit"])[:10] for found in runs.values() for r in found.values()})
    tried = [line for case in runs for line in ["", *tuning.table(tuning_of(case), RUNS / "tuning")]]
    return "\n".join(
        [
            "# V-trace and policy lag",
            "",
            "Made by `python scripts/studies/vtrace_lag.py`.",
            "",
            f"A2C on CartPole-v1 (`configs/cartpole_a2c.yaml`), {len(any_run.seeds)} seeds, {steps:,} steps. "
            f"With `workflow.actor_lag=L` the policy that acts is L unrolls of {unroll} steps old: the "
            "learner is off-policy by a known amount. V-trace weights each step by the clipped ratio of "
            "present to acting policy; without it the data is taken for on-policy data. Data and updates are "
            "equal. Beside the config's own step size, the best of a few was chosen for each way and lag.",
            "",
            "![curves](vtrace_lag.png)",
            "",
            "Greedy evaluation return, interquartile mean over seeds with 95 % bootstrap interval: after the "
            f"last update, and averaged over the run; seeds that end with {SOLVED} or more. The last column "
            "is the range over the run of the mean importance ratio (1 on policy).",
            "",
            "| lag | targets | step size | at the end | solved | over the run | importance ratio |",
            "|---|---|---|---|---|---|---|",
            *(row(case, kind, run) for case, found in runs.items() for kind, run in found.items()),
            "",
            "## V-trace against no correction",
            "",
            "EXARL reported that A2C with V-trace solves CartPole under policy lag and A2C without it does "
            "not. Differences of the scores with 95 % bootstrap intervals over seeds; a difference counts as "
            "shown if its interval excludes zero. "
            "Intervals are not corrected for the number of comparisons.",
            "",
            *compared(runs, "shipped"),
            *compared(runs, "tuned")[2:],
            "",
            what_remains(runs),
            "",
            "## Step sizes tried",
            "",
            f"On seeds {tuning.FIRST_SEED} and up; the one with the best mean over the run was taken. Mean "
            "and range of the seeds.",
            *tried,
            "",
            f"Commit: {', '.join(f'`{commit}`' for commit in commits)}.",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--page", action="store_true", help="only write the page from finished runs")
    runs = run_all(parser.parse_args().page)
    figure_of(runs).savefig(RESULTS / "vtrace_lag.png")
    (RESULTS / "vtrace_lag.md").write_text(page(runs))
    print("wrote docs/results/vtrace_lag.md")


if __name__ == "__main__":
    main()
