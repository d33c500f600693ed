"""Why MinAtar scores scatter: greedy play of a deterministic game is one single episode.

    python scripts/studies/minatar_evaluation.py            train, then write the page
    python scripts/studies/minatar_evaluation.py --page     only write the page from finished runs

Counts in how many ways the games begin and go on, and compares the greedy evaluations of short runs with the
returns of their training episodes. Writes docs/results/minatar_evaluation.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tuning  # beside this file

from jaxrl_hpc.envs import gymnax
from jaxrl_hpc.metrics.units import count
from jaxrl_hpc.report.data import RunData, load_run
from jaxrl_hpc.runs.directory import RunDirectory
from jaxrl_hpc.types import Array, PyTree

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "results" / "minatar_evaluation.md"
GAMES = ("Breakout-MinAtar", "SpaceInvaders-MinAtar", "Asterix-MinAtar", "Freeway-MinAtar")
COPIES, STEPS = 256, 500
RUNS = {  # config and settings; short runs, on seeds that no other page reports
    "SpaceInvaders, DQN": (
        "space_invaders_dqn",
        ("agent.batch_size=32", "workflow.updates_per_iteration=1", "run.total_env_steps=600_000"),
    ),
    "Breakout, PPO": ("breakout_ppo", ("run.total_env_steps=300_000",)),
}
COMMON = ("run.seeds=3", "run.seed=1000", "run.eval_every=50_000", "run.log_every=10_000")


def command(name: str) -> list[str]:
    config, settings = RUNS[name]
    folder = f"runs/studies/minatar_evaluation/{config}"
    return ["train", config, *COMMON, *settings, "--run-dir", folder, "--resume"]


def run_of(name: str) -> RunData | None:
    folder = ROOT / "runs" / "studies" / "minatar_evaluation" / RUNS[name][0]
    done = folder.is_dir() and RunDirectory(folder).read_summary() is not None
    return load_run(folder) if done else None


def ways(game: str) -> tuple[int, int]:
    """(different first observations, different sums of rewards of one fixed greedy policy) of many copies."""
    env = gymnax.make(gymnax.Config(name=game))
    state, obs = env.reset(jax.random.split(jax.random.key(0), COPIES))
    starts = len({row.tobytes() for row in np.asarray(obs)})
    shape = (int(np.prod(env.spec.obs_shape)), env.spec.num_actions or 0)
    weights = jax.random.normal(jax.random.key(5), shape)

    def one(carry: tuple[PyTree, Array, Array, Array], key: Array):
        state, obs, lengths, alive = carry
        action = jnp.argmax(obs.reshape(COPIES, -1).astype(jnp.float32) @ weights, axis=-1).astype(jnp.int32)
        state, step = env.step(jax.random.split(key, COPIES), state, action)
        ended = jnp.logical_or(step.terminated, step.truncated)
        # what is seen along the way, folded into a number: equal episodes have equal numbers
        seen = jnp.sum(step.final_obs.reshape(COPIES, -1) * jnp.cos(jnp.arange(shape[0])), axis=-1)
        return (state, step.obs, lengths + alive * seen, alive * (1.0 - ended)), None

    start = (state, obs, jnp.zeros(COPIES), jnp.ones(COPIES))
    keys = jax.random.split(jax.random.key(9), STEPS)
    (_, _, traces, _), _ = jax.jit(lambda s: jax.lax.scan(one, s, keys))(start)
    return starts, len(set(np.asarray(traces).tolist()))


def scatter(run: RunData) -> list[str]:
    """Cells: spread within an evaluation, and change from one evaluation to the next, greedy and training."""
    within = np.mean([np.mean(y) for _, y in run.per_seed("eval", "eval_return_std", "env_steps")])
    greedy, training = [], []
    pairs = zip(
        run.per_seed("eval", "eval_return", "env_steps"),
        run.per_seed("train", "episode_return", "env_steps"),
        strict=True,
    )
    for (at, values), (steps, returns) in pairs:
        greedy.append(np.abs(np.diff(values)).mean())
        edges = np.concatenate([[0], at])  # training episodes since the evaluation before
        chosen = [(steps > a) & (steps <= b) for a, b in zip(edges, at, strict=False)]
        means = [returns[c].mean() for c in chosen if c.any()]
        training.append(np.abs(np.diff(means)).mean())
    ends = list(run.summary["eval_return_per_seed"].values()), tuning.training_return(run)
    ranges = [f"{min(values):.0f} … {max(values):.0f}" for values in ends]
    return [f"{within:.1f}", f"{np.mean(greedy):.1f}", f"{np.mean(training):.1f}", *ranges]


def write_page() -> None:
    rows = [f"| {game} | {' | '.join(map(str, ways(game)))} |" for game in GAMES]
    found = {name: run for name in RUNS if (run := run_of(name)) is not None}
    missing = [name for name in RUNS if name not in found]
    lines = [
        "# Why MinAtar scores scatter",
        "",
        "Made by `python scripts/studies/minatar_evaluation.py`. Greedy play of a deterministic game is one "
        "single episode, however many are averaged.",
        "",
        f"gymnax's games have no sticky actions. Of {COPIES} copies with keys of their own, the number of "
        f"different first observations, and of different courses of {STEPS} steps under one greedy policy:",
        "",
        "| game | first observations | courses |",
        "|---|---|---|",
        *rows,
        "",
        "So an evaluation of 128 greedy episodes of SpaceInvaders repeats one episode, and one of Breakout "
        "two: a small change of the network can change the score by a lot. Mean over seeds and evaluations "
        "of short runs:",
        "",
        "| run | steps | deviation within an evaluation | change between evaluations, greedy "
        "| the same of training episodes | seeds at the end, greedy | training, last tenth |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {name} | {count(run.summary['env_steps'])} | {' | '.join(scatter(run))} |"
            for name, run in found.items()
        ),
        "",
        *([f"Not yet run: {', '.join(missing)}.", ""] if missing else []),
        "A greedy score of these two games is a sample of one or two episodes. To compare agents there, look "
        "at `episode_return` of training too, a mean over many different episodes (with exploration).",
        "",
        "| run | command | commit |",
        "|---|---|---|",
        *(
            f"| {name} | `jaxrl-hpc {' '.join(command(name))}` | `{str(run.summary['commit'])[:10]}` |"
            for name, run in found.items()
        ),
    ]
    PAGE.write_text("\n".join(lines) + "\n")
    print(f"wrote {PAGE}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--page", action="store_true", help="only write the page from finished runs")
    if not parser.parse_args().page:
        for name in RUNS:
            print("+ jaxrl-hpc", *command(name), flush=True)
            subprocess.run([sys.executable, "-m", "jaxrl_hpc.cli.main", *command(name)], cwd=ROOT, check=True)
    write_page()


if __name__ == "__main__":
    main()
