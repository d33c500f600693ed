"""From a config to the parts of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxrl_hpc.comm.ranks import world
from jaxrl_hpc.config import Config
from jaxrl_hpc.envs import slow
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.registry import find
from jaxrl_hpc.schema import Schema, traced_values
from jaxrl_hpc.types import Agent, Env, Replay, Workflow

Hypers = dict[str, dict[str, float]]  # section -> traced hyperparameter -> value


class Parts(NamedTuple):
    """What a run is made of."""

    env: Env
    agent: Agent
    replay: Replay | None
    workflow: Workflow


def _make(section: str, config: Any, *args: Any, **kwargs: Any) -> Any:
    return find(section, config.name).make(config, *args, **kwargs)


def divided(section: str, config: Any, shards: int, exact: Sequence[str], about: Sequence[str] = ()) -> Any:
    """A component's config for one of `shards` equal parts of a run; fields in `about` are rounded up."""
    present = [name for name in exact if hasattr(config, name)]
    for name in present:
        if getattr(config, name) % shards:
            raise UserError(
                f"{section}.{name} is {getattr(config, name)}: it must be a multiple of "
                f"workflow.shards = {shards}"
            )
    parts = {name: getattr(config, name) // shards for name in present}
    parts |= {name: -(-getattr(config, name) // shards) for name in about if hasattr(config, name)}
    return config.model_copy(update=parts)


def build(config: Config) -> Parts:
    """Make every component, and check that they fit each other."""
    flow: Any = config.workflow
    shards = getattr(flow, "shards", 1)
    env: Env = _make("env", config.env)
    if config.run.step_seconds:
        if hasattr(flow, "shards") and world().size > 1:
            raise UserError(
                "run.step_seconds: a program with MPI inside cannot call the host to sleep; use one rank, "
                "or a workflow with actors or workers"
            )
        env = slow.wrap(env, config.run.step_seconds)
    agent_config = divided("agent", config.agent, shards, ["batch_size"])
    agent: Agent = _make("agent", agent_config, env.spec, num_envs=getattr(flow, "all_copies", flow.num_envs))
    copies = divided("workflow", flow, shards, ["num_envs"]).num_envs
    name = getattr(config.agent, "name", "?")
    replay: Replay | None = None
    if agent.data == "transitions":
        if config.replay is None:
            raise UserError(
                f"replay: agent {name!r} learns from a replay; add e.g. replay: {{name: uniform}}"
            )
        capacity = getattr(config.replay, "capacity", 0)
        if capacity >= 2**31:  # indices of a batch drawn from all shards are int32
            raise UserError(f"replay.capacity is {capacity}: it must stay below 2^31")
        replay = _make(
            "replay",
            divided("replay", config.replay, shards, ["capacity"], about=["min_size", "final_capacity"]),
            num_envs=copies,
            unroll_length=flow.unroll_length,
            window=agent.window,
            batch_size=agent.batch_size,
        )
    elif config.replay is not None:
        raise UserError(f"replay: agent {name!r} learns from its own trajectories; remove the replay section")
    workflow: Workflow = _make("workflow", flow, env, agent, replay, config.run.total_env_steps)
    if workflow.warmup_steps >= config.run.total_env_steps:
        raise UserError(
            f"run.total_env_steps: {config.run.total_env_steps} leaves nothing to learn from, "
            f"since the replay fills for {workflow.warmup_steps} steps first (replay.min_size)"
        )
    return Parts(env, agent, replay, workflow)


def hypers_of(config: Config) -> Hypers:
    """The traced hyperparameters of all sections, as they stand in the config."""
    sections: dict[str, Schema | None] = {"agent": config.agent, "replay": config.replay}
    return {name: traced_values(part) for name, part in sections.items() if part is not None}
