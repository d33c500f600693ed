"""Annealing a film: agents against constant temperatures and the fixed ramp.

    python scripts/studies/cahn_hilliard.py            train what is missing, play the rules, write the page
    python scripts/studies/cahn_hilliard.py --page     only write the page from finished runs

Runs go to runs/studies/cahn_hilliard/<agent>; finished ones are skipped, broken ones resumed. Agents learn on
films of 64 x 64 points and are judged on films of 128 x 128 too. All rules play from the same start states.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import curves  # beside this file
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from jaxrl_hpc.envs.cahn_hilliard import Config, policies
from jaxrl_hpc.envs.cahn_hilliard.environment import CahnHilliard
from jaxrl_hpc.envs.cahn_hilliard.figures import episode_figure
from jaxrl_hpc.metrics.units import count, duration
from jaxrl_hpc.ops.statistics import score
from jaxrl_hpc.report.data import RunData, load_run, load_runs
from jaxrl_hpc.report.plots import learning_curves
from jaxrl_hpc.runs.directory import RunDirectory
from jaxrl_hpc.runtime.evaluation import evaluate_run
from jaxrl_hpc.runtime.evaluation import load_run as loaded

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
RUNS = ROOT / "runs" / "studies" / "cahn_hilliard"
AGENTS = {"ppo": "cahn_hilliard_ppo", "dqn": "cahn_hilliard_dqn"}
SEEDS, EPISODES = 5, 32
SIZES = (128, 64)


def command(agent: str) -> list[str]:
    settings = [f"run.seeds={SEEDS}", f"run.name=cahn_hilliard.{agent}"]
    return ["train", AGENTS[agent], *settings, "--run-dir", f"runs/studies/cahn_hilliard/{agent}", "--resume"]


def train(only: str | None) -> None:
    for agent in AGENTS:
        if only in (None, agent):
            print("+ jaxrl-hpc", *command(agent), flush=True)
            subprocess.run(
                [sys.executable, "-m", "jaxrl_hpc.cli.main", *command(agent), "run.executors=1"],
                cwd=ROOT,
                check=True,
            )


def play_rules() -> dict[str, dict[str, list[float]]]:
    """size -> rule -> returns of its episodes."""
    file = RUNS / "rules.json"
    if not file.exists():
        keys = jax.random.split(jax.random.key(7), EPISODES)
        found = {}
        for size in SIZES:
            env = CahnHilliard(Config(size=size))  # type: ignore[arg-type]
            found[str(size)] = {
                name: policies.follow(env, wanted, keys).tolist()
                for name, wanted in policies.rules(30).items()
            }
        RUNS.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found))
    return json.loads(file.read_text())


def judge(agent: str) -> dict[str, dict[str, float]]:
    """size -> seed -> mean return of greedy episodes of a finished run."""
    file = RUNS / agent / "judged.json"
    if not file.exists():
        found = {
            str(size): evaluate_run(RUNS / agent, EPISODES, overrides=[f"env.size={size}"]) for size in SIZES
        }
        file.write_text(json.dumps({size: f["eval_return_per_seed"] for size, f in found.items()}))
    return json.loads(file.read_text())


def draw_rule(name: str, wanted: np.ndarray, env: CahnHilliard) -> None:
    """An episode of a rule, beside the agent's."""

    def act(time: Any, obs: Any, key: Any) -> tuple[Any, Any]:
        away = (wanted[time] - obs[0]) / 0.1
        return 1 + jnp.sign(jnp.round(away)).astype(jnp.int32), time + 1

    episode = policies.record(env, act, 0, jax.random.key(0))
    figure = episode_figure(episode, name.capitalize(), env.target)
    figure.savefig(RESULTS / "cahn_hilliard_rule.png", dpi=110)


def spread(values: Any) -> str:
    found = score(np.asarray(values, float))
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def best_constant(rules: dict[str, list[float]]) -> str:
    return max((n for n in rules if n.startswith("constant")), key=lambda n: middle(rules[n]))


def middle(values: Any) -> float:
    return float(score(np.asarray(values, float)).value)


def finished() -> list[RunData]:
    folders = [RUNS / agent for agent in AGENTS]
    done = [f for f in folders if f.is_dir() and RunDirectory(f).read_summary() is not None]
    return [load_run(folder) for folder in done]


def table(rules: dict[str, dict[str, list[float]]], runs: list[RunData]) -> list[str]:
    sizes = [str(size) for size in SIZES]
    best = {size: best_constant(rules[size]) for size in sizes}
    bar = {size: max(middle(returns) for returns in rules[size].values()) for size in sizes}
    lines = [
        "| policy | 128 x 128 points | 64 x 64 points | beats all constants and ramps | steps, time |",
        "|---|---|---|---|---|",
    ]
    for run in runs:
        judged = judge(run.agent)
        values = {size: list(judged[size].values()) for size in sizes}
        wins = all(float(score(np.asarray(values[size])).low) > bar[size] for size in sizes)
        cost = f"{count(run.summary['env_steps'])}, {duration(run.summary['wall_seconds'])}"
        cells = [spread(values[size]) for size in sizes]
        name = f"{run.agent}, {len(values[sizes[0]])} seeds"
        lines.append(f"| {name} | {' | '.join(cells)} | {'yes, on both' if wins else '**no**'} | {cost} |")
    for name in sorted(rules[sizes[0]], key=lambda n: -middle(rules[sizes[0]][n])):
        marks = [" (best constant)" if name == best[size] else "" for size in sizes]
        cells = [spread(rules[size][name]) + mark for size, mark in zip(sizes, marks, strict=True)]
        lines.append(f"| {name} | {' | '.join(cells)} | | |")
    return lines


def figure_of(study: str) -> Figure:
    """Learning on films of 64 x 64, from the stored curves."""
    runs, metric = curves.load(study)
    return learning_curves(runs, "eval", metric)


def draw_curves(runs: list[RunData], rules: dict[str, list[float]]) -> None:
    """With the best constant temperature there as a line."""
    best = best_constant(rules)
    curves.store("cahn_hilliard", "cahn_hilliard", load_runs([run.path for run in runs]))
    figure = figure_of("cahn_hilliard")
    for axes in figure.axes:
        axes.axhline(middle(rules[best]), color="#5b6270", linewidth=1, linestyle="--")
    figure.axes[0].annotate(
        f"best constant temperature ({best.split()[1]})",
        (0.98, middle(rules[best])),
        xycoords=("axes fraction", "data"),
        ha="right",
        va="bottom",
        fontsize=8,
        color="#5b6270",
    )
    figure.savefig(RESULTS / "cahn_hilliard.png", dpi=110)


def write_page() -> None:
    rules, runs = play_rules(), finished()
    lines = [
        "# Annealing a block copolymer film: agents against fixed rules",
        "",
        "Made by `python scripts/studies/cahn_hilliard.py`.",
        "",
        "Control the temperature of a film (CahnHilliard-v0) to reach the structure of annealed films. "
        "Returns are sums of −mean((S − S*)²) over 30 actions; 0 is perfect. A constant temperature is "
        "approached as quickly as possible and kept; ramps cool evenly, from 1 to the temperature of the "
        "target structure or to 0.1. Agents learn on films of 64 x 64 points and are tested on films of "
        "128 x 128 too.",
        "",
    ]
    if runs:
        draw_curves(runs, rules["64"])
        lines += ["![learning curves, on 64 x 64](cahn_hilliard.png)", ""]
    lines += [
        *table(rules, runs),
        "",
        f"IQM of the return with its 95 % bootstrap interval: of rules over {EPISODES} episodes each, of "
        "agents over seeds (greedy episodes after the last update). An agent beats the rules if its whole "
        "interval lies above all of them.",
        "",
    ]
    if runs:
        config: Any = Config()
        act_pictures(runs[0].path, best_constant(rules["128"]), CahnHilliard(config))
        lines += [
            "An episode of the first agent, then one of the best constant temperature, on 128 x 128 points:",
            "",
            "![agent](cahn_hilliard_agent.png)",
            "",
            "![best constant temperature](cahn_hilliard_rule.png)",
            "",
        ]
    lines += ["[How accurate the simulator is](cahn_hilliard_accuracy.md)", ""]
    lines += ["| agent | command | commit |", "|---|---|---|"]
    for run in runs:
        words = " ".join(command(run.agent))
        lines.append(f"| {run.agent} | `jaxrl-hpc {words}` | `{str(run.summary['commit'])[:10]}` |")
    (RESULTS / "cahn_hilliard.md").write_text("\n".join(lines) + "\n")
    print("wrote docs/results/cahn_hilliard.md")


def act_pictures(run: Path, rule: str, env: CahnHilliard) -> None:
    """The same film led by an agent and by a rule."""
    from jaxrl_hpc.runtime.episodes import draw_episode

    folder = RUNS / "pictures"
    folder.mkdir(exist_ok=True)
    config, runner = loaded(run, overrides=["env.size=128"])
    label = getattr(config.agent, "name", "agent")
    draw_episode(runner, 0, label, jax.random.key(0), folder)
    (RESULTS / "cahn_hilliard_agent.png").write_bytes((folder / "episode.png").read_bytes())
    draw_rule(rule, policies.rules(30)[rule], env)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--entry", choices=list(AGENTS), help="train only this agent")
    parser.add_argument("--page", action="store_true", help="only write the page")
    args = parser.parse_args()
    if not args.page:
        train(args.entry)
    write_page()


if __name__ == "__main__":
    main()
