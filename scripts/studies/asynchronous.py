"""Asynchronous agents: do they solve what their synchronous twins solve, how old is what they learn from?

    python scripts/studies/asynchronous.py [--seeds 5] [--only NAME…]    train what is missing, write the page
    python scripts/studies/asynchronous.py --page                        only write the page

One job per entry trains its seeds one after the other; finished ones are skipped, broken ones resumed. Runs
go to runs/studies/asynchronous/<entry>/<seed>; the page is docs/results/asynchronous.md. Sections without
any run in that folder are kept as the page has them.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from jaxrl_hpc import config as configs
from jaxrl_hpc.metrics.units import count, duration
from jaxrl_hpc.ops.statistics import score
from jaxrl_hpc.report.data import RunData, load_run
from jaxrl_hpc.report.plots import draw_curve
from jaxrl_hpc.report.style import MATPLOTLIB, color, words
from jaxrl_hpc.runs.directory import RunDirectory
from jaxrl_hpc.runtime.train import train
from jaxrl_hpc.workflows.actor_learner.staleness import NAMES

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"


class Entry(NamedTuple):
    """One config on one number of ranks."""

    name: str
    config: str
    learners: int
    actors: int
    target: float | None
    overrides: tuple[str, ...] = ()


def agents() -> list[Entry]:
    """Every agent with 2 and 4 actors, and with 2 learners; these take as many steps per update together."""
    entries = []
    for agent, config, target, halved in (
        ("td3", "pendulum_td3_async", -200, ("workflow.updates_per_iteration=16",)),
        ("a3c", "cartpole_a3c", 475, ("workflow.num_envs=8",)),
        ("impala", "cartpole_impala", 475, ("workflow.batch_trajectories=1",)),
        ("apex", "cartpole_apex_async", 475, ("workflow.updates_per_iteration=128",)),
    ):
        path = f"workflows/{config}"
        entries.append(Entry(f"{agent} 1+2", path, 1, 2, target))
        entries.append(Entry(f"{agent} 1+4", path, 1, 4, target))
        entries.append(Entry(f"{agent} 2+2", path, 2, 2, target, ("workflow.learners=2", *halved)))
    return entries


# deep queues make unrolls old, and nothing else does: what waits was made with older parameters
OLD = (
    "agent.learning_rate=2e-3",
    "agent.normalise.reward=true",
    "agent.normalise_advantage=false",
    "agent.entropy_coef=0.01",
    "workflow.unroll_length=16",
    "workflow.max_lag=null",
    "run.total_env_steps=300_000",
    "run.eval_every=20_000",
)
VTRACE = [
    Entry(f"{name} q{depth}", "workflows/cartpole_a3c", 1, 4, None, (*changes, *OLD))
    for depth in (2, 8)
    for name, changes in (
        ("vtrace", ("agent.vtrace=true", f"workflow.in_flight={depth}")),
        ("no correction", ("agent.vtrace=false", f"workflow.in_flight={depth}")),
    )
]
SHORT = ("run.total_env_steps=100_000", "run.eval_every=20_000")
ATARI = [  # one seed each: how fast it goes, and how it begins
    Entry("impala Breakout", "workflows/atari_breakout_impala", 1, 2, None, SHORT),
    Entry("apex Breakout", "workflows/atari_breakout_apex", 1, 2, None, SHORT),
]
ENTRIES = {entry.name: entry for entry in [*agents(), *VTRACE, *ATARI]}


def folder_of(entry: Entry, seed: int) -> Path:
    return ROOT / "runs" / "studies" / "asynchronous" / entry.name.replace(" ", "_") / str(seed)


def work(entry: Entry, seeds: int) -> int:
    """All ranks of a job: seed after seed."""
    for seed in range(1 if entry in ATARI else seeds):
        settings = (f"run.seed={seed}", "run.tensorboard=false", *entry.overrides)
        outcome = train(configs.load(entry.config, settings), folder_of(entry, seed), resume=True)
        if not outcome.finished:
            return 75
    return 0


def start(entry: Entry, seeds: int, launcher: str) -> None:
    ranks = str(entry.learners + entry.actors)
    command = [launcher, "-n", ranks, sys.executable, __file__, "--work", entry.name, "--seeds", str(seeds)]
    print("+", *command, flush=True)
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})


def finished(entry: Entry) -> list[RunData]:
    folders = sorted(folder_of(entry, 0).parent.glob("*"), key=lambda path: int(path.name))
    return [load_run(path) for path in folders if RunDirectory(path).read_summary() is not None]


def together(name: str, runs: list[RunData]) -> RunData:
    """Seeds of one entry as one run."""
    table = pa.concat_tables([run.table for run in runs], promote_options="permissive")
    return RunData(name, runs[0].path, runs[0].config, {}, table)


def interval(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.1f}"
    found = score(np.array(values))
    return f"{found.value:.0f} [{found.low:.0f}, {found.high:.0f}]"


def average(runs: list[RunData], column: str) -> float:
    return float(np.mean([np.mean(y) for run in runs for _, y in run.per_seed("train", column, "env_steps")]))


def verdict(target: float | None, value: float, low: float) -> str:
    """On an interquartile mean over seeds and the lower end of its interval."""
    if target is None:
        return "–"
    if value < target:
        return "**missed**"
    return "reached" if low >= target else "open: some seeds below"


def row(entry: Entry, runs: list[RunData]) -> str:
    final = [run.summary["eval_return_score"] for run in runs]
    found = score(np.array(final))
    largest = max(float(np.max(y)) for run in runs for _, y in run.per_seed("train", "lag_max", "env_steps"))
    cells = [
        entry.name,
        f"{entry.learners} + {entry.actors}",
        str(len(runs)),
        count(runs[0].summary["env_steps"]),
        "–" if entry.target is None else f"{entry.target:g}",
        interval(final),
        verdict(entry.target, found.value, found.low),
        f"{average(runs, 'lag_mean'):.1f}",
        f"{largest:.0f}",
        f"{sum(run.summary['dropped_unrolls'] for run in runs) / len(runs):.1f}",
        f"{100 * average(runs, 'learner_idle'):.0f} %",
        f"{100 * average(runs, 'actor_idle'):.0f} %",
        duration(float(np.median([run.summary["wall_seconds"] for run in runs]))),
    ]
    return "| " + " | ".join(cells) + " |"


def impala(found: dict[str, list[RunData]]) -> str:
    """How many seeds of IMPALA settle."""
    runs = [run for name, several in found.items() if name.startswith("impala") for run in several]
    if not runs:
        return "Why some seeds of IMPALA ended below the target is not known."
    target = ENTRIES["impala 1+2"].target
    assert target is not None
    ends = sorted(run.summary["eval_return_score"] for run in runs)
    below = [end for end in ends if end < target]
    text = f"IMPALA: {len(ends) - len(below)} of {len(ends)} seeds end at {target:g} or more"
    text += f", the others at {', '.join(f'{end:.0f}' for end in below)}. " if below else ". "
    return text + (
        f"Earlier runs (commits {EARLIER}) had intervals from 376 and 404 with 1 + 2 and 1 + 4 ranks; their "
        "single seeds are no longer recorded. [At an even lag](impala_settings.md) of two versions none of "
        "eight seeds ended below. What distinguishes a seed that does is not known."
    )


EARLIER = "`00e1c64aca`, `8a84811982`, `e6b34ed5df`"
HEAD = [
    "| entry | learners + actors | seeds | steps | target | return [interval] | verdict | lag | largest | "
    "dropped | learners idle | actors idle | time |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
]


def curves(found: dict[str, list[RunData]]) -> Figure:
    """Returns of all agents above, ages of what they learned from below."""
    names = list(dict.fromkeys(name.split(" ")[0] for name in found))
    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(3.1 * len(names), 5.2), layout="constrained")
        panels = figure.subplots(2, len(names), squeeze=False)
        for place, agent in enumerate(names):
            mine = {name: runs for name, runs in found.items() if name.split(" ")[0] == agent}
            for index, (name, runs) in enumerate(mine.items()):
                entry = ENTRIES[name]
                label = f"{entry.learners} learner{'s' * (entry.learners > 1)}, {entry.actors} actors"
                draw_curve(
                    panels[0, place], together(label, runs), "eval", "eval_return", "env_steps", color(index)
                )
                histogram(panels[1, place], runs, index, len(mine))
            panels[0, place].set_title(f"{words(agent)}, {next(iter(mine.values()))[0].env}")
            panels[0, place].xaxis.set_major_formatter(EngFormatter(sep=""))
            panels[0, place].set_xlabel("Environment steps")
        panels[0, 0].set_ylabel("Evaluation return")
        panels[1, 0].set_ylabel("Share of unrolls")
        figure.legend(*legend(panels[0, 0]), loc="outside lower left", ncols=3, fontsize=8)
    return figure


def legend(panel: matplotlib.axes.Axes) -> tuple[list, list]:
    lines = [line for line in panel.get_lines() if not str(line.get_label()).startswith("_")]
    return lines, [line.get_label() for line in lines]


def histogram(panel: matplotlib.axes.Axes, runs: list[RunData], index: int, of: int) -> None:
    places = np.arange(len(NAMES)) + (index - (of - 1) / 2) * 0.8 / of
    panel.bar(places, [average(runs, name) for name in NAMES], width=0.8 / of, color=color(index))
    panel.set_xticks(np.arange(len(NAMES)), [_range(name) for name in NAMES], fontsize=8, rotation=90)
    panel.set_xlabel("Lag (learner iterations)")


def _range(name: str) -> str:
    """lag/2_3 -> 2–3"""
    return name.removeprefix("lag/").replace("_up", "+").replace("_", "–")


def vtrace_figure(found: dict[str, list[RunData]]) -> Figure:
    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(9.2, 3.6), layout="constrained")
        panels = figure.subplots(1, 3)
        for index, (name, runs) in enumerate(found.items()):
            whole = together(name, runs)
            draw_curve(panels[0], whole, "eval", "eval_return", "env_steps", color(index))
            draw_curve(panels[1], whole, "train", "rho_clipped", "env_steps", color(index))
            histogram(panels[2], runs, index, len(found))
        for panel, label in zip(
            panels, ("Evaluation return", "Share of clipped weights", "Share of unrolls"), strict=True
        ):
            panel.set_ylabel(label)
        for panel in panels[:2]:
            panel.set_xlabel("Environment steps")
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        figure.legend(*legend(panels[0]), loc="outside lower center", ncols=len(found))
    return figure


def footer(entries: list[Entry], found: dict[str, list[RunData]]) -> list[str]:
    """What is missing of a section, and the commits of what is there."""
    missing = [entry.name for entry in entries if entry.name not in found]
    names = sorted({str(run.summary["commit"])[:10] for runs in found.values() for run in runs})
    lines = [f"Not yet run: {', '.join(missing)}.", ""] if missing else []
    return [*lines, f"Commits: {', '.join(f'`{name}`' for name in names)}.", ""] if names else lines


def kept(heading: str) -> list[str]:
    """A section of the present page, from its heading to the next."""
    page = RESULTS / "asynchronous.md"
    lines = page.read_text().splitlines() if page.exists() else []
    if heading not in lines:
        return []
    begin = lines.index(heading)
    end = next(
        (i for i, line in enumerate(lines[begin + 1 :], begin + 1) if line.startswith("## ")), len(lines)
    )
    return [*lines[begin:end], ""] if lines[end - 1] else lines[begin:end]


def description() -> str:
    names = ", ".join(dict.fromkeys(f"`{entry.config}`" for entry in agents()))
    return (
        "A3C, IMPALA and Ape-X on CartPole-v1, TD3 on Pendulum-v1, with actors and learners on MPI ranks of "
        f"their own ({names})."
    )


def kept_rows() -> dict[str, str]:
    """Rows of the present page, by entry: they stay where an entry's runs are not at hand."""
    page, rows = RESULTS / "asynchronous.md", {}
    for line in page.read_text().splitlines() if page.exists() else []:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        entry = ENTRIES.get(cells[0])
        if entry is not None and len(cells) == HEAD[0].count("|") - 1:
            numbers = re.fullmatch(r"(\S+) \[(\S+), \S+\]", cells[5])
            if numbers:
                cells[6] = verdict(entry.target, *map(float, numbers.groups()))
            rows[entry.name] = "| " + " | ".join(cells) + " |"
    return rows


def write_page() -> None:
    found = {name: runs for name, entry in ENTRIES.items() if (runs := finished(entry))}
    vtrace = {entry.name: found[entry.name] for entry in VTRACE if entry.name in found}
    atari = {entry.name: found[entry.name] for entry in ATARI if entry.name in found}
    plain = {name: runs for name, runs in found.items() if name not in vtrace | atari}
    lines = [
        "# Asynchronous agents",
        "",
        "Made by `python scripts/studies/asynchronous.py`.",
        "",
        description(),
        "",
    ]
    before = {name: line for name, line in kept_rows().items() if name not in found}
    earlier = [entry.name for entry in agents() if entry.name in before]
    if plain or earlier:
        lines += ["![returns and ages](asynchronous.png)", ""]
        if earlier:
            lines += [
                "*An earlier figure; its runs are no longer stored. Bands and intervals are percentile "
                "bootstraps, which are [a little too narrow](intervals.md).*",
                "",
            ]
        else:
            curves(plain).savefig(RESULTS / "asynchronous.png", dpi=110)
        lines += HEAD
        for entry in agents():
            if entry.name in plain:
                lines.append(row(entry, plain[entry.name]))
            elif entry.name in before:
                lines.append(before[entry.name])
        if earlier:
            lines += [
                "",
                f"Earlier runs (commits {EARLIER}), not repeated since: {', '.join(earlier)}. In these the "
                "figure of a single seed is the interquartile mean of its episodes: it leaves out a seed's "
                "worst and best quarter of episodes, and is too high where few episodes fail.",
            ]
        lines += [
            "",
            "Return: greedy episodes after the last update, a mean over episodes for every seed; IQM "
            "and 95 % interval over seeds. Open: it is at the target, but its "
            "interval begins below. Lag: age of an unroll's parameters when it was learned from, "
            "in learner iterations: the mean, and the largest of all seeds, of dropped ones too. Dropped: "
            "unrolls older than `workflow.max_lag`, per seed. "
            "Idle: share of the time spent waiting for the other side; there were more ranks than cores. "
            "With two learners an iteration takes an unroll of each, and updates see as many steps as with "
            "one.",
            "The settings of A3C were chosen with `fused` and `workflow.actor_lag` of 2 and 4 on seeds 100 "
            "to 107, which are not among these: steps of 1e-3, unrolls of 8, standardised advantages and an "
            "entropy bonus of 0.02. With unrolls of 16 and without the other two, two to four of eight seeds "
            "ended between 150 and 350. Those of IMPALA were chosen likewise, at lags of 4 and 8: rewards in "
            "units of the return's deviation, and steps of 2e-3.",
            "",
            impala(plain),
            "",
            *footer([entry for entry in agents() if entry.name not in before], plain),
        ]
    if vtrace:
        vtrace_figure(vtrace).savefig(RESULTS / "asynchronous_vtrace.png", dpi=110)
        lines += [
            "## V-trace under real lag",
            "",
            "A2C with four actors and queues of two and of eight unrolls each (q2, q8), so that what is "
            "learned from is old; with and without V-trace, otherwise the same "
            "([lag by construction](vtrace_lag.md)).",
            "",
            "![returns, clipped weights, ages](asynchronous_vtrace.png)",
            "",
            *HEAD,
            *(row(ENTRIES[name], runs) for name, runs in vtrace.items()),
            "",
            *footer(VTRACE, vtrace),
        ]
    else:
        lines += kept("## V-trace under real lag")
    if atari:
        # no figure: a line of one seed is no learning curve
        rates = [
            f"{count(runs[0].summary['env_steps_per_second'])}/s ({name})" for name, runs in atari.items()
        ]
        lines += [
            "## Breakout (ALE)",
            "",
            "One seed each of IMPALA and Ape-X on the real game: speed, and the beginning of learning. "
            f"Actions (of four frames) per second: {', '.join(rates)}, with three ranks on two cores. "
            "IMPALA made one update of every 320 actions, Ape-X one of every eight: a "
            "score near that of [random play](atari_breakout.md) means that nothing was learned yet.",
            "",
            *HEAD,
            *(row(ENTRIES[name], runs) for name, runs in atari.items()),
            "",
            *footer(ATARI, atari),
        ]
    else:
        lines += kept("## Breakout (ALE)")
    (RESULTS / "asynchronous.md").write_text("\n".join(lines).rstrip() + "\n")
    print("wrote docs/results/asynchronous.md")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=[*ENTRIES], help="train only these")
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--work", help=argparse.SUPPRESS)  # a rank of a job
    parser.add_argument("--launcher", default=str(Path(sys.executable).with_name("mpiexec")))
    args = parser.parse_args()
    if args.work:
        return work(ENTRIES[args.work], args.seeds)
    for name in [] if args.page else (args.only or ENTRIES):
        start(ENTRIES[name], args.seeds, args.launcher)
    write_page()
    return 0


if __name__ == "__main__":
    sys.exit(main())
