"""Workflows with plain arguments: combines parts after checking that they fit together.

    flow = rl.workflows.fused(env, agent, memory, num_envs=8)
    state = flow.init(jax.random.key(0))
    state, metrics = jax.jit(flow.step, donate_argnums=0)(state, 100)     # 100 iterations in one program

Workflows of several processes are started by `rl.train` or `jaxrl-hpc train`, which set up the job.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from jaxrl_hpc.api import replay as memories
from jaxrl_hpc.api.parts import AgentOrigin, attribute_of, documented, settings_of
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.types import Agent, Array, Env, PyTree, Replay, Windows
from jaxrl_hpc.workflows.base import TraceableWorkflow

__all__ = ["fused"]


@documented("workflow", "workflows")
def fused(
    env: Env,
    agent: Agent,
    memory: Replay | None = None,
    *,
    num_envs: int = 8,
    total_env_steps: int = 100_000,
    **settings: Any,
) -> TraceableWorkflow:
    """Acting and learning as one compiled program on one device.

    Args:
      env: the environment.
      agent: from `rl.agents`.
      memory: from `rl.replay`; by default one that suits the agent.
      num_envs: environment copies.
      total_env_steps: budget over which exploration, step sizes and other schedules run.
      settings: as in a config.

    Returns:
      init(key) -> state, with a filled replay; step(state, iterations) -> (state, metrics); learner(state).
      All are pure: jit them, donate the state, vmap them over keys.
    """
    component, config = settings_of("workflow", "fused", settings | {"num_envs": num_envs})
    made: AgentOrigin | None = agent.origin
    if config.unroll_length == 0:
        suits = made.config.suitable_unroll if made else 0
        config = config.model_copy(update={"unroll_length": suits or config.replay_unroll})
    if made is not None:
        _check_agent(made, env, num_envs)
    memory = _fitting(env, agent, memory, num_envs, config.unroll_length)
    flow: TraceableWorkflow = component.make(config, env, agent, memory, total_env_steps)
    if flow.warmup_steps >= total_env_steps:
        raise UserError(
            f"total_env_steps: {total_env_steps:,} leaves nothing to learn from, since the replay fills for "
            f"{flow.warmup_steps:,} steps first (min_size of the memory)"
        )

    @jax.jit
    def start(key: Array, hypers: Mapping[str, Any]) -> PyTree:
        return flow.fill(flow.init(key, hypers))

    def init(key: Array, hypers: Mapping[str, Any] | None = None) -> PyTree:
        """A fresh state whose replay is filled; `hypers` replace numbers, as {"agent": {"gamma": 0.9}}."""
        given = {"agent": None, "replay": None} | dict(hypers or {})
        if made is None and given["agent"] is None:
            raise UserError(
                'hypers: this agent was not made by rl.agents, so give its numbers: {"agent": {"gamma": …}}'
            )
        return start(key, given)

    return dataclasses.replace(flow, init=init, fill=lambda state: state, warmup_steps=0)


def _check_agent(made: AgentOrigin, env: Env, num_envs: int) -> None:
    """Checks that the environment has the shapes and bounds that the agent was made for."""
    for field in ("obs_shape", "num_actions", "action_shape"):
        ours, theirs = getattr(made.spec, field), getattr(env.spec, field)
        if ours != theirs:
            raise UserError(
                f"agent: {made.config.name} was made for {made.spec.name} ({field} {ours}), but "
                f"{env.spec.name} has {field} {theirs}: make it with this environment's spec"
            )
    if getattr(made.config, "exploration", "") == "ladder" and made.num_envs != num_envs:
        raise UserError(
            f"num_envs: {made.config.name} explores differently in each of {made.num_envs} copies, but here "
            f"are {num_envs}: make it with num_envs={num_envs}"
        )


def _fitting(
    env: Env, agent: Agent, memory: Replay | None, num_envs: int, unroll_length: int
) -> Replay | None:
    """The memory for this many copies, if it suits the agent."""
    made: AgentOrigin | None = agent.origin
    name = made.config.name if made else "this agent"
    if not isinstance(agent.needs, Windows):
        if memory is not None:
            raise UserError(f"memory: {name} learns from its own unrolls: leave the memory out")
        return None
    needs = agent.needs
    if memory is None:
        suits = (made.config.suitable_replay if made else "") or "uniform"
        example = memories.example_of(env, agent)
        memory = memories.make(suits, example, batch_size=needs.batch_size, window=needs.length)
    origin: memories.ReplayOrigin | None = memory.origin
    if origin is None:  # of one's own: it was made for these sizes
        return memory
    for field, has, wants in (
        ("window", origin.window, needs.length),
        ("batch_size", origin.batch_size, needs.batch_size),
    ):
        if has != wants:
            raise UserError(
                f"memory: has {field}={has}, but {name} learns from {field}={wants}: "
                f"make it with {field}={wants}"
            )
    if made is not None:
        _check_example(env, agent, name, origin.example)
    return memories.build(origin, num_envs, unroll_length)


def _check_example(env: Env, agent: Agent, name: str, example: PyTree) -> None:
    wanted = memories.example_of(env, agent)
    shapes = [
        {
            jax.tree_util.keystr(path, simple=True, separator="."): f"{leaf.dtype}{list(leaf.shape)}"
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }
        for tree in (example, wanted)
    ]
    if shapes[0] != shapes[1]:
        leaf = next(n for n in (*shapes[1], *shapes[0]) if shapes[0].get(n) != shapes[1].get(n))
        raise UserError(
            f"memory: its example has {shapes[0].get(leaf, 'nothing')} as {leaf}, but transitions of {name} "
            f"in {env.spec.name} have {shapes[1].get(leaf, 'nothing')}: use rl.replay.example_of(env, agent)"
        )


def __getattr__(name: str) -> Any:
    return attribute_of(__name__, "workflow", "workflows", fused, name)
