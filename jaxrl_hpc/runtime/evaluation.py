"""Evaluate a run directory: rebuild it from its config, load its newest checkpoint, play.

The environment may differ from the training environment if it has the same shapes and bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxrl_hpc import config as configs
from jaxrl_hpc.config.registry import find
from jaxrl_hpc.envs.external.host import simulator_failures_told
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runs.directory import RunDirectory
from jaxrl_hpc.runtime import machine
from jaxrl_hpc.runtime.build import build
from jaxrl_hpc.runtime.memory import check_memory
from jaxrl_hpc.runtime.seeds import SeedRunner
from jaxrl_hpc.runtime.summary import describe, spread_over_seeds
from jaxrl_hpc.runtime.train import lanes_of, make_runner
from jaxrl_hpc.types import Env, EnvSpec
from jaxrl_hpc.user_code import check_trusted


def check_looks_alike(trained: EnvSpec, other: EnvSpec) -> None:
    """Check that an environment has the shapes and bounds that the agent was made for."""
    for field, word in (
        ("obs_shape", "observations"),
        ("num_actions", "actions"),
        ("action_shape", "actions"),
    ):
        ours, theirs = getattr(trained, field), getattr(other, field)
        if ours != theirs:
            raise UserError(
                f"env: the agent was trained for {word} of {trained.name!r} ({field} {ours}), but those "
                f"of {other.name!r} are different ({field} {theirs}); use an environment with the same "
                "shapes and bounds"
            )


def other_env(config: configs.Config, overrides: Sequence[str]) -> tuple[configs.Config, Env]:
    """The run's config with env settings replaced, and the environment that follows from it."""
    data = config.to_dict()
    for text in overrides:
        if not text.startswith("env."):
            raise UserError(f"{text}: an evaluation can change the environment only, such as env.horizon=200")
        configs.apply_override(data, text)
        if text.startswith("env.name="):  # another environment has other settings: start from its defaults
            data["env"] = {"name": data["env"]["name"]}
    changed = configs.from_dict(data)
    return changed, find("env", changed.env.name).make(changed.env)


def load_run(
    run_dir: str | Path, episodes: int = 1, overrides: Sequence[str] = (), *, trust: bool = False
) -> tuple[configs.Config, SeedRunner]:
    """A run's parts with the states of its newest good checkpoint. Nothing is compiled but evaluation.

    `trust`: import the code that the run's config names, even if this user did not train it.
    """
    run = RunDirectory.existing(run_dir)
    data = run.read_config()
    check_trusted(run.path, data, trust)
    with configs.mistakes_located(run.config_path):
        config = configs.from_dict(data)
    lanes = lanes_of(config)
    machine.prepare(config, len(lanes))
    parts = build(config)
    if overrides:
        config, env = other_env(config, overrides)
        check_looks_alike(parts.env.spec, env.spec)
        # the workflow keeps the old one, which defines the contents of a checkpoint
        parts = parts._replace(env=env)
    runner = make_runner(config, parts, lanes, episodes)
    check_memory(config, runner, training=False)
    shapes = [runner.state_shape()] * len(runner.groups)
    _, states, _ = runner.store(run.checkpoints).restore(shapes)
    runner.load(states)
    return config, runner


def evaluate_run(
    run_dir: str | Path,
    episodes: int,
    seed: int = 1,
    overrides: Sequence[str] = (),
    *,
    trust: bool = False,
) -> dict[str, Any]:
    """Returns of greedy episodes, per seed and over seeds. `seed` picks the start states."""
    _, runner = load_run(run_dir, episodes, overrides, trust=trust)
    with simulator_failures_told(runner.parts.env):
        runner.compile(training=False)
        # training evaluates with iterations and -1 as ids: others below that are never used there
        results = runner.evaluate_many(episodes, -1 - seed)
    per_lane = [describe(runner.parts, e) for e in results]
    return {
        "env": runner.parts.env.spec.name,
        "episodes": episodes,
        "env_steps": runner.counters()["env_steps"],
        "eval_return_per_seed": {
            str(lane.seed): v["eval_return"] for lane, v in zip(runner.lanes, per_lane, strict=True)
        },
        **spread_over_seeds(runner.parts, per_lane, results),
    }
