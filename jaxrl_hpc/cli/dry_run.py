"""Description of what `train` would do: parts, shapes and memory, without computing anything.

Times are taken from finished runs of the same config in the same folder; unknown if there are none.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl_hpc.cli.table import described
from jaxrl_hpc.config import Config
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.metrics.units import count, duration, size
from jaxrl_hpc.runs.directory import RunDirectory
from jaxrl_hpc.runs.listing import listing

if TYPE_CHECKING:
    from jaxrl_hpc.runtime.build import Parts
    from jaxrl_hpc.runtime.seeds import SeedRunner
    from jaxrl_hpc.types import EnvSpec, PyTree

# run settings that affect neither the computation nor its duration
INCIDENTAL = (
    "name",
    "seed",
    "seeds_mode",
    "checkpoint_seconds",
    "keep_checkpoints",
    "progress_seconds",
    "trackers",
)


def describe(config: Config, run_dir: Path) -> str:
    """The parts as a table of two columns."""
    from jaxrl_hpc.runtime import machine
    from jaxrl_hpc.runtime.build import build
    from jaxrl_hpc.runtime.memory import check_memory, free_bytes
    from jaxrl_hpc.runtime.train import check_one_seed, lanes_of, make_runner
    from jaxrl_hpc.runtime.trainer import ChunkSchedule

    lanes = lanes_of(config)
    machine.prepare(config, len(lanes))
    parts = build(config)
    check_one_seed(parts, lanes)
    runner = make_runner(config, parts, lanes)
    flow, run = parts.workflow, config.run
    schedule = ChunkSchedule.of(config, parts)
    seeds = f"{run.seeds} seeds" if run.seeds > 1 else "one seed"
    rows = [
        ("environment", f"{parts.env.spec.name}: {_spaces(parts.env.spec)}"),
        ("agent", f"{config.agent.name}: {_learner(parts, runner)}"),
        ("learns from", _data(config, parts)),
        (
            "workflow",
            f"{config.workflow.name}: {config.workflow.num_envs} copies, unrolls of "
            f"{_steps(config.workflow.unroll_length)}, {count(flow.steps_per_iteration)} steps an iteration",
        ),
        (
            "budget",
            f"{run.total_env_steps:,} steps of {seeds}: {flow.warmup_steps:,} to fill the replay, then "
            f"{schedule.total:,} iterations"
            if flow.warmup_steps
            else f"{run.total_env_steps:,} steps of {seeds}: {schedule.total:,} iterations",
        ),
        ("evaluations", _evaluations(config)),
    ]
    if flow.traceable:
        needed, free = check_memory(config, runner), free_bytes(flow.device)
        left = "free memory unknown" if free is None else f"{size(free)} free"
        rows += [("state", _state(runner)), ("memory", f"about {size(needed)} at most, {left}")]
    else:
        rows.append(("memory", "depends on the ranks of the job: train checks it once they have joined"))
    rows += [("time", _time(config, run_dir.parent)), ("run directory", str(run_dir))]
    return described(rows) + "\n\nnothing was trained"


def _steps(number: int) -> str:
    return "one step" if number == 1 else f"{number} steps"


def _spaces(spec: EnvSpec) -> str:
    obs = f"observations {spec.obs_dtype}{list(spec.obs_shape)}"
    if spec.layout:
        obs += " of " + ", ".join(f"{part.name} {list(part.shape)}" for part in spec.layout)
    limit = f"episodes of at most {spec.max_episode_steps:,} steps"
    if spec.num_actions is not None:
        return f"{obs}, {spec.num_actions} actions, {limit}"
    if spec.action_sizes:
        return f"{obs}, actions of {' × '.join(map(str, spec.action_sizes))} choices, {limit}"
    return f"{obs}, actions float32{list(spec.action_shape)}, {limit}"


def _learner(parts: Parts, runner: SeedRunner) -> str:
    import jax

    key, hypers = runner.first_arguments()
    learner = jax.eval_shape(parts.agent.init, key, hypers["agent"])
    leaves = jax.tree.leaves(learner.params)
    number = sum(math.prod(leaf.shape) for leaf in leaves)
    return f"{number:,} parameters in {len(leaves)} arrays, {size(_bytes(learner.params))}"


def _data(config: Config, parts: Parts) -> str:
    needs = parts.agent.needs
    if parts.replay is None:
        return "its own unrolls, each once it is complete"
    windows = f"batches of {needs.batch_size:,} windows of {_steps(needs.length)}"
    assert config.replay is not None
    return f"a {config.replay.name} replay of {config.replay.capacity:,} steps, {windows}"


def _evaluations(config: Config) -> str:
    run = config.run
    last = f"{run.final_eval_episodes} episodes at the end"
    if not run.eval_every:
        return last
    return f"{run.eval_episodes} episodes every {run.eval_every:,} steps, {last}"


def _bytes(tree: PyTree) -> int:
    import jax

    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _state(runner: SeedRunner) -> str:
    """Size of a seed's state, with its largest parts."""
    from jaxrl_hpc.checkpoint.checkpointer import state_bytes

    state = runner.state_shape()
    seeds = len(runner.lanes) if runner.stacked else 1
    named = state._asdict() if hasattr(state, "_asdict") else {}
    sizes = sorted(((state_bytes(part) // seeds, name) for name, part in named.items()), reverse=True)
    inner = ", ".join(f"{name} {size(amount)}" for amount, name in sizes[:3] if amount)
    return f"{size(state_bytes(state) // seeds)} a seed ({inner})" if inner else size(state_bytes(state))


def _time(config: Config, folder: Path) -> str:
    """Wall time of the newest finished run of the same config here."""
    wanted = _essence(config.to_dict())
    for entry in listing(folder) if folder.is_dir() else []:
        run = RunDirectory(entry.path)
        try:
            summary = run.read_summary() if entry.state == "finished" else None
            same = summary is not None and _essence(run.read_config()) == wanted
        except UserError:
            continue
        if same and summary is not None:
            wall, compiling = duration(summary["wall_seconds"]), duration(summary["compile_seconds"])
            return f"{wall} after {compiling} of compilation, as measured in {entry.path}"
    return f"unknown: {folder} has no finished run of this config"


def _essence(config: dict[str, Any]) -> dict[str, Any]:
    """Without settings that do not matter, and with `auto` where a run's config records the choice."""
    run = {name: value for name, value in config.get("run", {}).items() if name not in INCIDENTAL}
    workflow = {name: value for name, value in config.get("workflow", {}).items() if name != "engine"}
    return {**config, "run": run, "workflow": workflow}
