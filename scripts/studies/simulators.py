"""Learning results in outside simulators: one process per seed, one page per study.

    python scripts/studies/simulators.py lunar_lander            train what is missing, then write the page
    python scripts/studies/simulators.py lunar_lander --page     only write the page from finished runs
    python scripts/studies/simulators.py --list

Runs go to runs/studies/<study>/<entry>/seed_<n>; finished ones are skipped, broken ones resumed. Beside every
entry stands what random play gets, from as many episodes of the same kind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import curves  # beside this file
import numpy as np
import pyarrow as pa
from command_line import Entry, run
from kept_rows import KeptRow, kept_rows
from matplotlib.figure import Figure

from jaxrl_hpc.metrics.units import count, duration
from jaxrl_hpc.ops.statistics import score
from jaxrl_hpc.report.data import RunData, load_run
from jaxrl_hpc.report.plots import learning_curves
from jaxrl_hpc.runs.directory import RunDirectory
from jaxrl_hpc.runtime.machine import available_cores

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"


COLUMNS = (
    "entry", "seeds", "steps each", "target", "score [interval]", "verdict", "per seed", "random play",
    "time", "steps",
)  # fmt: skip


class Study(NamedTuple):
    title: str
    text: str
    entries: tuple[Entry, ...]
    random_episodes: int


STUDIES = {
    "lunar_lander": Study(
        "LunarLander-v3 and its continuous twin",
        "The real simulator (envpool's Box2D) inside the compiled program. A return of 200 counts as solved.",
        (
            Entry("ppo", "lunar_lander_ppo", 5, 200),
            Entry("dqn", "lunar_lander_dqn", 5, 200),
            Entry("a2c", "lunar_lander_a2c", 5, 200),
            Entry("td3_continuous", "lunar_lander_continuous_td3", 5, 200),
            Entry("sac_continuous", "lunar_lander_continuous_sac", 5, 250),
            Entry("ppo_continuous", "lunar_lander_continuous_ppo", 5, 200),
        ),
        64,
    ),
    "mujoco": Study(
        "MuJoCo's robots, 300k steps",
        "Three robots of Gymnasium's version 5 by envpool; PPO has a million steps.",
        tuple(
            Entry(f"{robot}_{agent}", f"{robot}_{agent}", 3, target if agent == "sac" else None)
            for robot, target in (("half_cheetah", 5_000), ("hopper", None), ("walker2d", None))
            for agent in ("sac", "td3", "ppo")
        ),
        16,
    ),
    "atari_breakout": Study(
        "Breakout (Atari), 500k actions",
        "Raw scores of whole games without sticky actions, after up to 30 no-op steps; games end "
        "after 4,500 actions (five minutes) at the latest.",
        (Entry("ppo", "atari_breakout_ppo", 3),),
        32,
    ),
}


def folder_of(study: str, entry: Entry, seed: int) -> Path:
    return ROOT / "runs" / "studies" / study / entry.name / f"seed_{seed}"


def command(study: str, entry: Entry, seed: int | str) -> list[str]:
    settings = [f"run.seed={seed}", f"run.name={study}.{entry.name}", *entry.overrides]
    folder = f"runs/studies/{study}/{entry.name}/seed_{seed}"
    return ["train", entry.config, *settings, "--run-dir", folder, "--resume"]


def train(study: str, only: str | None) -> None:
    for entry in STUDIES[study].entries:
        if only not in (None, entry.name):
            continue
        with ThreadPoolExecutor(available_cores()) as pool:  # a process per core at a time
            list(pool.map(partial(train_one, study, entry), range(entry.seeds)))
        play_randomly(study, entry)


def train_one(study: str, entry: Entry, seed: int) -> None:
    print("+ jaxrl-hpc", *command(study, entry, seed), flush=True)
    words = [sys.executable, "-m", "jaxrl_hpc.cli.main", *command(study, entry, seed)]
    subprocess.run(words, cwd=ROOT, check=True, env={**os.environ, "NPROC": "1"})


def random_file(study: str, entry: Entry) -> Path:
    return ROOT / "runs" / "studies" / study / entry.name / "random.json"


def play_randomly(study: str, entry: Entry) -> None:
    """Returns of episodes with uniform actions, as an evaluation plays them."""
    if random_file(study, entry).exists():
        return
    from jaxrl_hpc import config as configs
    from jaxrl_hpc.config.registry import find

    config: Any = configs.load(entry.config, entry.overrides)
    env = find("env", config.env.name).make(config.env).host.for_evaluation
    rng = np.random.default_rng(0)
    copies, spec = STUDIES[study].random_episodes, env.spec
    simulator = env.host.simulators.make(copies)
    simulator.reset(np.arange(1, copies + 1, dtype=np.uint32))
    returns, alive = np.zeros(copies), np.ones(copies, bool)
    for _ in range(spec.max_episode_steps):
        if spec.discrete:
            action = rng.integers(spec.num_actions, size=copies).astype(np.int32)
        else:
            action = rng.uniform(spec.action_low, spec.action_high, (copies, *spec.action_shape))
        outcome = simulator.step(action.astype(spec.action_dtype))
        returns += alive * outcome.reward
        alive &= ~(outcome.terminated | outcome.truncated)
        if not alive.any():
            break
    simulator.close()
    random_file(study, entry).write_text(json.dumps(returns.tolist()))


def finished(study: str) -> list[tuple[Entry, list[RunData]]]:
    found = []
    for entry in STUDIES[study].entries:
        folders = [folder_of(study, entry, seed) for seed in range(entry.seeds)]
        done = [f for f in folders if f.is_dir() and RunDirectory(f).read_summary() is not None]
        if done:
            found.append((entry, [load_run(folder) for folder in done]))
    return found


def together(entry: Entry, runs: list[RunData]) -> RunData:
    """The seeds of an entry as one run with several seeds."""
    table = pa.concat_tables([run.table for run in runs], promote_options="default")
    return RunData(entry.name, runs[0].path, runs[0].config, runs[0].summary, table)


def interval(values: Any, digits: int = 1) -> str:
    found = score(np.asarray(values, float))
    return f"{found.value:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"


def row(study: str, entry: Entry, runs: list[RunData]) -> str:
    returns = [next(iter(run.summary["eval_return_per_seed"].values())) for run in runs]
    value = float(score(np.asarray(returns)).value)
    spread = interval(returns) if len(runs) > 1 else f"{value:.1f}"
    verdict = "–" if entry.target is None else ("reached" if value >= entry.target else "**missed**")
    random = json.loads(random_file(study, entry).read_text())
    summary = runs[0].summary
    cells = [
        entry.name,
        str(len(runs)),
        count(summary["env_steps"]),
        "–" if entry.target is None else f"{entry.target:g}",
        spread,
        verdict,
        ", ".join(f"{x:.0f}" for x in returns),
        interval(random),
        duration(sum(run.summary["wall_seconds"] for run in runs) / len(runs)),
        f"{count(summary['env_steps_per_second'])}/s",
    ]
    return "| " + " | ".join(cells) + " |"


def figure_of(study: str) -> Figure:
    """From the stored curves."""
    runs, metric = curves.load(study)
    return learning_curves(runs, "eval", metric)


def head(study: str) -> list[str]:
    """A page's lines before its figure."""
    made = f"Made by `python scripts/studies/simulators.py {study}`."
    return [f"# {STUDIES[study].title}", "", made, "", STUDIES[study].text]


def write_page(study: str) -> None:
    """Rows of entries whose runs are not stored here stay as they are."""
    found, page = finished(study), RESULTS / f"{study}.md"
    names = [entry.name for entry in STUDIES[study].entries]
    made = {entry.name for entry, _ in found}
    kept = kept_rows(page, COLUMNS, [name for name in names if name not in made])
    if not found and not kept:
        sys.exit(f"no run of study {study!r} has finished")
    results = {e.name: row(study, e, runs) for e, runs in found} | {n: k.result for n, k in kept.items()}
    commands = {
        e.name: f"| {e.name} | `jaxrl-hpc {' '.join(command(study, e, 'N'))}` "
        f"| `{str(runs[0].summary['commit'])[:10]}` |"
        for e, runs in found
    } | {n: k.command for n, k in kept.items()}
    joined = [together(entry, runs) for entry, runs in found]
    joined = [run for run in joined if "eval_return" in run.columns("eval")]
    all_curves = set(results) <= {run.name for run in joined} | curves.stored_names(study)
    if all_curves:
        curves.store(study, "simulators", joined, keep=set(results))
        figure_of(study).savefig(RESULTS / f"{study}.png", dpi=110)
    figure = [f"![learning curves]({study}.png)", ""] if (RESULTS / f"{study}.png").exists() else []
    figure += [curves.EARLIER_FIGURE, ""] if figure and not all_curves else []
    not_again = (
        "Not run again when this page was last written, with intervals as made then (percentile "
        f"bootstraps): {', '.join(kept)}."
    )
    lines = [
        *head(study),
        "",
        *figure,
        "| " + " | ".join(COLUMNS) + " |",
        "|---" * len(COLUMNS) + "|",
        *(results[name] for name in names if name in results),
        "",
        "Final evaluation: greedy episodes after the last update, in separate simulators; over seeds the IQM "
        "with a 95 % interval (mean and range of fewer than five), for random play over episodes. Every "
        "seed had one core, which did other work too: times are upper bounds.",
        *_missing(study, {e.name: len(runs) for e, runs in found} | {n: _seeds(kept[n]) for n in kept}),
        *([not_again] if kept else []),
        "",
        "| entry | command, of each seed | commit |",
        "|---|---|---|",
        *(commands[name] for name in names if name in commands),
    ]
    page.write_text("\n".join(lines) + "\n")
    print(f"wrote docs/results/{study}.md")


def _seeds(row: KeptRow) -> int:
    return int(row.result.split(" | ")[COLUMNS.index("seeds")])


def _missing(study: str, done: dict[str, int]) -> list[str]:
    left = [
        f"{entry.name} ({entry.seeds - done.get(entry.name, 0)} of {entry.seeds} seeds)"
        for entry in STUDIES[study].entries
        if done.get(entry.name, 0) < entry.seeds
    ]
    return [f"Not yet run: {', '.join(left)}."] if left else []


if __name__ == "__main__":
    run(__doc__, STUDIES, train, write_page, head)
