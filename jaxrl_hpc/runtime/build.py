"""From a config to the parts of a run."""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxrl_hpc.config import Config
from jaxrl_hpc.config.registry import find
from jaxrl_hpc.envs import delayed
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.schema import ComponentConfig, per_shard, traced_values
from jaxrl_hpc.types import Agent, Env, Replay, Windows, Workflow
from jaxrl_hpc.workflows import emulated

Hypers = dict[str, dict[str, float]]  # section -> traced hyperparameter -> value


class Parts(NamedTuple):
    """The components of a run."""

    env: Env
    agent: Agent
    replay: Replay | None
    workflow: Workflow


def _make(section: str, config: ComponentConfig, *args: Any, **kwargs: Any) -> Any:
    return find(section, config.name).make(config, *args, **kwargs)


def build(config: Config) -> Parts:
    """Make all components, and check that they fit together."""
    flow, name = config.workflow, config.agent.name
    resources = flow.resources()
    shards = resources.shards
    check_schedules(config)
    env: Env = _make("env", config.env)
    if env.host.recorded is not None and flow.acts:
        raise UserError(
            f"workflow: env {config.env.name!r} is recorded data, in which no agent can act: use "
            "workflow.name=offline without online_after"
        )
    if config.run.step_seconds:
        env = delayed.wrap(env, config.run.step_seconds, config.run.step_tail)
    agent_config = per_shard(config.agent, shards, "agent")
    agent: Agent = _make("agent", agent_config, env.spec, num_envs=resources.total_copies)
    if config.run.update_seconds:
        whole = agent.needs.length * agent.needs.batch_size * shards
        whole = whole or flow.unroll_length * flow.num_envs * flow.unrolls_per_add
        agent = emulated.slow_updates(agent, config.run.update_seconds, whole)
    copies = per_shard(flow, shards, "workflow").num_envs
    replay: Replay | None = None
    if isinstance(agent.needs, Windows):
        if config.replay is None:
            raise UserError(
                f"replay: agent {name!r} learns from a replay; add e.g. replay: {{name: uniform}}"
            )
        replay_config = per_shard(config.replay, shards, "replay")
        if flow.cuts_windows:
            replay_config = replay_config.with_cut_unrolls(
                agent.needs.length, flow.unroll_length, copies, flow.unrolls_per_add
            )
        replay = _make(
            "replay",
            replay_config,
            num_envs=copies,
            unroll_length=flow.unroll_length * flow.unrolls_per_add,
            window=agent.needs.length,
            batch_size=agent.needs.batch_size,
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


def check_schedules(config: Config) -> None:
    """Refuse schedules for workflows whose order is fixed."""
    wanted = {"record_schedule": config.run.record_schedule, "replay_schedule": config.run.replay_schedule}
    asked = [f"run.{name}" for name, value in wanted.items() if value]
    if asked and not config.workflow.has_schedules:
        raise UserError(
            f"{', '.join(asked)}: workflow {config.workflow.name!r} always runs in the same order and "
            "has no schedule; leave it out, or use a workflow with actors or workers"
        )


def hypers_of(config: Config) -> Hypers:
    """The traced hyperparameters of all sections, with the values of the config."""
    sections: dict[str, ComponentConfig | None] = {"agent": config.agent, "replay": config.replay}
    return {name: traced_values(part) for name, part in sections.items() if part is not None}
