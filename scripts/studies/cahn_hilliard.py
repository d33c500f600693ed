"""Annealing a film: agents against constant temperatures and the fixed ramp.

    python scripts/studies/cahn_hilliard.py            train what is missing, play the rules, write the page
    python scripts/studies/cahn_hilliard.py --page     only write the page from finished runs

Runs go to runs/studies/cahn_hilliard/<agent>; finished ones are skipped, broken ones resumed. Rules play the
same number of episodes as an agent's final evaluation, all rules from the same start states.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.envs.cahn_hilliard import Config, policies
from jaxrl_hpc.envs.cahn_hilliard.environment import CahnHilliard
from jaxrl_hpc.envs.cahn_hilliard.figures import episode_figure
from jaxrl_hpc.io.plots import learning_curves
from jaxrl_hpc.io.results import load_run, load_runs
from jaxrl_hpc.io.run import RunDirectory
from jaxrl_hpc.io.units import count, duration
from jaxrl_hpc.ops.statistics import bootstrap_interval, interquartile_mean

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
RUNS = ROOT / "runs" / "studies" / "cahn_hilliard"
AGENTS = {"ppo": "cahn_hilliard_ppo", "dqn": "cahn_hilliard_dqn"}
SEEDS, EPISODES = 5, 64


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


def play_rules() -> dict[str, list[float]]:
    """Returns of every rule's episodes."""
    file = RUNS / "rules.json"
    if not file.exists():
        env = CahnHilliard(Config())
        keys = jax.random.split(jax.random.key(7), EPISODES)
        found = {n: policies.follow(env, w, keys).tolist() for n, w in policies.rules(30).items()}
        RUNS.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found))
    return json.loads(file.read_text())


def draw_rule(name: str, wanted: np.ndarray) -> None:
    """An episode of a rule, beside the agent's."""
    env = CahnHilliard(Config())

    def act(time: Any, obs: Any, key: Any) -> tuple[Any, Any]:
        away = (wanted[time] - obs[0]) / 0.1
        return 1 + jnp.sign(jnp.round(away)).astype(jnp.int32), time + 1

    episode = policies.record(env, act, 0, jax.random.key(0))
    figure = episode_figure(episode, name.capitalize(), env.target)
    figure.savefig(RESULTS / "cahn_hilliard_rule.png", dpi=110)


def spread(values: Any) -> str:
    samples = np.asarray(values, float)
    low, high = bootstrap_interval(samples)
    return f"{float(interquartile_mean(samples)):.3f} [{low:.3f}, {high:.3f}]"


def write_page() -> None:
    rules = play_rules()
    iqm = {name: float(interquartile_mean(np.asarray(values))) for name, values in rules.items()}
    constants = [name for name in rules if name.startswith("constant")]
    best = max(constants, key=lambda name: iqm[name])
    bar = max(iqm[best], iqm["ramp"])
    runs = []
    for agent in AGENTS:
        folder = RUNS / agent
        if folder.is_dir() and RunDirectory(folder).read_summary() is not None:
            runs.append(load_run(folder))
    lines = [
        "# Annealing a block copolymer film: agents against fixed rules",
        "",
        "Made by `python scripts/studies/cahn_hilliard.py`.",
        "",
        "Lead a film (128 x 128, CahnHilliard-v0) by its temperature to the structure of annealed ones. "
        "Returns are sums of −mean((S − S*)²) over 30 actions; 0 is perfect. A constant temperature is gone "
        "to as quickly as possible and kept; the ramp cools evenly from 1 to 0.1, as the films did that the "
        "wanted structure comes from.",
        "",
    ]
    if runs:
        figure = learning_curves(load_runs([run.path for run in runs]), "eval", "eval_return")
        for axes in figure.axes:
            axes.axhline(iqm[best], color="#5b6270", linewidth=1, linestyle="--")
        figure.axes[0].annotate(
            f"best constant temperature ({best.split()[1]})",
            (0.98, iqm[best]),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            fontsize=8,
            color="#5b6270",
        )
        figure.savefig(RESULTS / "cahn_hilliard.png", dpi=110)
        lines += ["![learning curves](cahn_hilliard.png)", ""]
    lines += ["| policy | IQM of the return [95 % interval] | beats best constant and ramp | steps, time |"]
    lines += ["|---|---|---|---|"]
    for run in runs:
        s = run.summary
        low, high = s["eval_return_ci95"]
        verdict = "yes" if low > bar else "**no**"
        cost = f"{count(s['env_steps'])}, {duration(s['wall_seconds'])} for {s['seeds']} seeds"
        lines.append(
            f"| {run.agent}, {s['seeds']} seeds | {s['eval_return_iqm']:.3f} [{low:.3f}, {high:.3f}] "
            f"| {verdict} | {cost} |"
        )
    for name in sorted(rules, key=lambda n: -iqm[n]):
        mark = " (best constant)" if name == best else ""
        lines.append(f"| {name}{mark} | {spread(rules[name])} | | |")
    lines += [
        "",
        f"Rules: {EPISODES} episodes each, interval over episodes. Agents: greedy episodes after the last "
        "update, interval over seeds. An agent beats the rules if its whole interval lies above them.",
        "",
    ]
    if runs and (runs[0].path / "plots" / "episode.png").exists():
        picture = (runs[0].path / "plots" / "episode.png").read_bytes()
        (RESULTS / "cahn_hilliard_agent.png").write_bytes(picture)
        draw_rule(best, policies.rules(30)[best])
        lines += [
            "An episode of the agent, then one of the best constant temperature:",
            "",
            "![agent](cahn_hilliard_agent.png)",
            "",
            "![best constant temperature](cahn_hilliard_rule.png)",
            "",
        ]
    lines += ["| agent | command | commit |", "|---|---|---|"]
    for run in runs:
        words = " ".join(command(run.agent))
        lines.append(f"| {run.agent} | `jaxrl-hpc {words}` | `{str(run.summary['commit'])[:10]}` |")
    (RESULTS / "cahn_hilliard.md").write_text("\n".join(lines) + "\n")
    print("wrote docs/results/cahn_hilliard.md")


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
