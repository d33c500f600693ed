"""Evaluate a run directory: rebuild it from its config, load its newest checkpoint, play."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxrl_hpc import config as configs
from jaxrl_hpc import machine
from jaxrl_hpc.build import build
from jaxrl_hpc.fleet import Fleet
from jaxrl_hpc.io.checkpoint import Checkpointer
from jaxrl_hpc.io.run import RunDirectory
from jaxrl_hpc.train import lanes_of, make_fleet
from jaxrl_hpc.trainer import describe, spread_over_seeds


def load_run(run_dir: str | Path, episodes: int = 1) -> tuple[configs.Config, Fleet]:
    """A run's parts with the states of its newest good checkpoint. Nothing is compiled but evaluation."""
    run = RunDirectory.existing(run_dir)
    config = configs.from_dict(run.read_config())
    lanes = lanes_of(config)
    machine.prepare(config, len(lanes))
    fleet = make_fleet(config, build(config), lanes, episodes)
    shapes = [fleet.state_shape()] * len(fleet.groups)
    _, states, _ = Checkpointer(run.checkpoints).restore(shapes)
    fleet.load(states)
    return config, fleet


def evaluate_run(run_dir: str | Path, episodes: int, seed: int = 1) -> dict[str, Any]:
    """Returns of greedy episodes, per seed and over seeds. `seed` picks the start states."""
    config, fleet = load_run(run_dir, episodes)
    fleet.compile(training=False)
    # training evaluates with iterations and -1 as ids: others below that are never used there
    results = fleet.evaluate_many(episodes, -1 - seed)
    per_lane = [describe(fleet.parts, e) for e in results]
    env: Any = config.env
    return {
        "env": env.name,
        "episodes": episodes,
        "env_steps": fleet.counters()["env_steps"],
        "eval_return_per_seed": {
            str(lane.seed): v["eval_return"] for lane, v in zip(fleet.lanes, per_lane, strict=True)
        },
        **spread_over_seeds(per_lane, results),
    }
