"""Learning from recorded transitions, optionally followed by acting.

    fill:         dataset ─→ replay
    iteration:    K × (sample, gradient, apply, prioritise)                 until `online_after` steps
                  unroll [T, B] → add → K × (sample, …)                     from then on: as `fused`

An iteration counts num_envs × unroll_length steps of the run's budget, whether it acts or not; so does
`online_after`. The replay keeps the recorded transitions to the end. Each copy's part of it begins with a
contiguous piece of the recording, so that windows of several steps are those of its episodes.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import model_validator

from jaxrl_hpc import datasets, rollout
from jaxrl_hpc.datasets import Dataset
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.rollout import Episodes
from jaxrl_hpc.schema import static
from jaxrl_hpc.types import Agent, Array, Env, Job, Metrics, Replay, Role, Transition, Workflow
from jaxrl_hpc.workflows import fused
from jaxrl_hpc.workflows.base import TraceableWorkflow
from jaxrl_hpc.workflows.config import WorkflowConfig
from jaxrl_hpc.workflows.fused import FusedState

BLOCK = 8192  # rows that the host transfers at once


class Config(WorkflowConfig):
    """Settings of learning from recordings."""

    name: Literal["offline"] = "offline"
    dataset: str = static(
        "", "transitions to learn from: Parquet, HDF5, minari:NAME, or a recording; empty: those of the env"
    )
    num_envs: int = static(1, "environment copies, once it acts", per_shard="exact", ge=1)
    online_after: int | None = static(
        None, "steps of the budget after which it also acts in the environment; null: never", ge=0
    )

    @property
    def acts(self) -> bool:
        return self.online_after is not None

    @model_validator(mode="after")
    def _rates_nothing(self) -> Self:
        if self.actor_priorities:
            raise ValueError(
                "actor_priorities: recorded transitions have no actor that computes them; set it to false"
            )
        return self


class Source:
    """The dataset of a run, read when first needed: inspecting a run does not need it."""

    def __init__(self, config: Config, env: Env, replay: Replay, online_steps: int) -> None:
        self.config, self.env, self.replay, self.online_steps = config, env, replay, online_steps

    @functools.cached_property
    def dataset(self) -> Dataset:
        path, host = self.config.dataset, self.env.host
        if not path and host.recorded is not None:
            found = host.recorded()
        elif path.endswith(".csv") and host.read_recording is not None:
            found = host.read_recording(path)
        else:
            found = datasets.open_dataset(path)
        datasets.check_fits(found, self.env.spec)
        kept = self.steps_per_copy(found) * self.config.num_envs
        if kept < self.replay.min_steps:
            raise UserError(
                f"dataset {found.path}: it has {found.rows:,} transitions, but learning begins with "
                f"{self.replay.min_steps:,} (replay.min_size)"
            )
        needed = kept + self.online_steps
        if 0 < self.replay.capacity < needed:
            raise UserError(
                f"replay.capacity is {self.replay.capacity:,}: it has to hold {kept:,} recorded transitions"
                f"{f' and {self.online_steps:,} new ones' if self.online_steps else ''}; set it to {needed:,}"
            )
        return found

    def steps_per_copy(self, dataset: Dataset) -> int:
        """The first contents of each copy's part of the replay; fewer steps than an unroll are left out."""
        unroll = self.config.unroll_length
        return dataset.rows // (self.config.num_envs * unroll) * unroll

    def read(self, start: int, length: int) -> Transition:
        """Steps [length, B] of all copies from `start` on; beyond the end the last one again."""
        data, per_copy = self.dataset.data, self.steps_per_copy(self.dataset)
        steps = np.minimum(start + np.arange(length), per_copy - 1)
        rows = steps[:, None] + np.arange(self.config.num_envs) * per_copy
        found: Transition = jax.tree.map(lambda leaf: leaf[rows], data)
        return found._replace(last=found.last | (steps == per_copy - 1)[:, None])


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfflineWorkflow(TraceableWorkflow):
    """Like `fused`, with a replay filled from a dataset."""

    source: Source

    @property
    def has_warmup(self) -> bool:
        return True

    def join(self, job: Job) -> Role:
        _ = self.source.dataset  # report problems before anything is written or compiled
        return super().join(job)

    def summary_extras(self) -> dict[str, Any]:
        found = self.source.dataset
        scores = datasets.behaviour(found)
        return {
            "dataset": found.path,
            "dataset_transitions": found.rows,
            "dataset_episodes": int(scores["episodes"]),
            "dataset_return": scores["return"] if np.isfinite(scores["return"]) else None,
        }


def make(config: Config, env: Env, agent: Agent, replay: Replay | None, total_env_steps: int) -> Workflow:
    if replay is None:
        raise UserError(
            "workflow offline: this agent learns from its own unrolls; use one with a replay, such as iql"
        )
    if not config.dataset and env.host.recorded is None:
        raise UserError(
            "workflow.dataset: name the file to learn from, such as one that `jaxrl-hpc record` wrote"
        )
    stages = fused.make_stages(config, env, agent, replay, total_env_steps)
    per_iteration, unroll = stages.steps_per_iteration, config.unroll_length
    offline_steps = total_env_steps if config.online_after is None else config.online_after
    offline_iterations = -(-offline_steps // per_iteration)
    source = Source(config, env, replay, max(total_env_steps - offline_iterations * per_iteration, 0))

    def init(key: Array, hypers: dict[str, dict[str, Array]]) -> FusedState:
        state = stages.init(key, hypers)
        example = rollout.example_transition(env, agent, agent.actor(state.learner), state.rollout)
        if jax.tree.leaves(example.extras):
            raise UserError(
                "agent: it learns from data that its own actors store with the steps (memory or returns), "
                "which recordings do not have; use td3, iql, sac or dqn, without normalise.reward"
            )
        return state

    def fill(state: FusedState) -> FusedState:
        steps = source.steps_per_copy(source.dataset)
        length = min(max(BLOCK // per_iteration, 1) * unroll, steps)  # whole unrolls
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, jnp.asarray(x).dtype), source.read(0, length)
        )
        actor_params = agent.actor(state.learner)

        def block(number: Array, state: FusedState) -> FusedState:
            start = number * length
            # the host transfers blocks: as constants they would be compiled into the program
            found = jax.pure_callback(lambda s: source.read(int(s), length), shapes, start)

            def add(i: Array, state: FusedState) -> FusedState:
                piece = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, i * unroll, unroll), found)
                return stages.take_in(state, actor_params, piece)

            count = jnp.minimum(length, steps - start) // unroll
            filled: FusedState = jax.lax.fori_loop(0, count, add, state)
            return filled

        filled: FusedState = jax.lax.fori_loop(0, -(-steps // length), block, state)
        return filled

    def study(state: FusedState) -> tuple[FusedState, Metrics, Episodes]:
        """An iteration without acting."""
        state, metrics = stages.learn(stages.begin(state), None)
        return state, metrics, Episodes.zero()

    def act(state: FusedState) -> tuple[FusedState, Metrics, Episodes]:
        state, trajectory, ended = stages.gather(state)
        state, metrics = stages.learn(state, trajectory)
        return state, metrics, ended

    def step(state: FusedState, iterations: Array) -> tuple[FusedState, Metrics]:
        # two loops, not a branch in one: a branch around the replay would copy it when seeds are vmapped
        alone = jnp.clip(offline_iterations - state.iteration, 0, iterations) if config.acts else iterations
        state, sums = fused.repeat(study, state, alone)
        if config.acts:
            state, sums = fused.repeat(act, state, iterations - alone, sums)
        metrics = fused.chunk_metrics(replay, state, sums, iterations)
        acted = jnp.maximum(state.iteration - offline_iterations, 0) if config.acts else 0
        return state, metrics | {"acted_steps": jnp.int32(acted * per_iteration)}

    return OfflineWorkflow(
        init=init,
        fill=fill,
        step=step,
        counters=fused.counters,
        learner=lambda s: s.learner,
        steps_per_iteration=per_iteration,
        loops=stages.loops,
        source=source,
    )
