"""A complete distributed workflow in one file: local updates and averaging (McMahan et al. 2017, Stich 2019).

    rank r:  H × ( unroll [T, B] → learn )  →  learner = mean over ranks  →  again

Every rank has its own environment copies and learns alone for H iterations; then all of them go on from the
average. One exchange per H iterations is all that crosses the network. For agents that learn from unrolls.

What makes it distributed: `uses_ranks`, a state in two parts (the same on all ranks; this rank's own), and a
store that saves both. In this folder:

    mpiexec -n 2 jaxrl-hpc train distributed_workflow.yaml
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc import rollout
from jaxrl_hpc.checkpoint.sharded import ShardedCheckpointer
from jaxrl_hpc.comm.ranks import Ranks, world
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.schema import static
from jaxrl_hpc.types import Agent, Array, Env, Job, LearnerState, Metrics, PyTree, Replay, Role, Store
from jaxrl_hpc.workflows.base import Resources, WorkflowBase, WorkflowConfig
from jaxrl_hpc.workflows.update import as_batch, learn


class Config(WorkflowConfig):
    """What a config may set. `num_envs` are the copies of one rank."""

    uses_ranks: ClassVar[bool] = True

    local_iterations: int = static(4, "H, iterations between averages", ge=1)
    deadline_seconds: float = static(
        300.0, "a job in which a rank makes no progress for this long is ended", ge=0, changeable=True
    )

    def resources(self) -> Resources:
        return Resources(
            total_copies=self.num_envs * world().size,
            shares_cores=True,
            deadline_seconds=self.deadline_seconds,
        )


class SharedState(NamedTuple):
    """The same on all ranks between two steps."""

    learner: LearnerState
    key: Array  # [] never consumed: folded with iteration and rank
    iteration: Array  # [] int32 averages taken
    env_steps: Array  # [] int32 of all ranks


class LocalState(NamedTuple):
    """The whole run as far as this rank holds it."""

    shared: SharedState
    own: rollout.RolloutState


def total(ranks: Ranks, tree: PyTree) -> PyTree:
    """The sum over ranks, float64, in one message."""
    leaves, structure = jax.tree.flatten(jax.device_get(tree))
    if not leaves:
        return tree
    numbers = ranks.add(np.concatenate([np.ravel(x) for x in leaves]))
    parts = np.split(numbers, np.cumsum([x.size for x in leaves])[:-1])
    return jax.tree.unflatten(structure, [p.reshape(x.shape) for p, x in zip(parts, leaves, strict=True)])


class LocalUpdates(WorkflowBase):
    """Compiled programs between two exchanges; the exchange itself is the host's."""

    def __init__(self, config: Config, env: Env, agent: Agent, total_env_steps: int) -> None:
        self.config, self.env, self.agent, self.total_env_steps = config, env, agent, total_env_steps
        self.job: Job | None = None  # None: this process only inspects a run
        self.ranks = world()
        per_iteration = config.num_envs * config.unroll_length * self.ranks.size
        self.steps_per_iteration = config.local_iterations * per_iteration
        self._local: Any = jax.jit(self.local)

    def join(self, job: Job) -> Role:
        self.job = job
        return Role(True, self.ranks)  # all ranks learn; a rank with learns=False would run `assist`

    def init(self, key: Array, hypers: dict[str, dict[str, Array]]) -> LocalState:
        agent_key, rollout_key, run_key = jax.random.split(key, 3)
        learner = self.agent.init(agent_key, hypers["agent"])
        ids = self.ranks.rank * self.config.num_envs + jnp.arange(self.config.num_envs, dtype=jnp.int32)
        copies = rollout.start(self.env, self.agent, rollout_key, ids)
        return LocalState(SharedState(learner, run_key, jnp.int32(0), jnp.int32(0)), copies)

    def compile(self, shape: LocalState) -> None:
        self._local = jax.jit(self.local).lower(shape).compile()

    def local(self, state: LocalState) -> tuple[LocalState, PyTree, Metrics]:
        """H iterations of this rank -> (state, sums for running statistics, means and sums of metrics)."""
        agent, shared = self.agent, state.shared
        key = jax.random.fold_in(jax.random.fold_in(shared.key, shared.iteration), self.ranks.rank)
        per_iteration = self.steps_per_iteration // self.config.local_iterations

        def iterate(carry: tuple[LearnerState, rollout.RolloutState, Array], key: Array):
            learner, copies, env_steps = carry
            env_steps = env_steps + per_iteration
            learner = learner._replace(progress=env_steps.astype(jnp.float32) / self.total_env_steps)
            length, actor = self.config.unroll_length, agent.actor(learner)
            copies, trajectory, ended = rollout.unroll(self.env, agent, actor, copies, length)
            # around the mean that all ranks know, so that they can be added
            statistics = agent.statistics(shared.learner, trajectory) if agent.statistics else ()
            learner, metrics, _ = learn(agent, learner, as_batch(trajectory), key)
            return (learner, copies, env_steps), (statistics, metrics, ended)

        start = (shared.learner, state.own, shared.env_steps)
        keys = jax.random.split(key, self.config.local_iterations)
        (learner, copies, env_steps), (statistics, metrics, ended) = jax.lax.scan(iterate, start, keys)
        shared = shared._replace(learner=learner, iteration=shared.iteration + 1, env_steps=env_steps)
        statistics, ended = jax.tree.map(lambda x: x.sum(axis=0), (statistics, ended))
        means = {name: value.mean() for name, value in metrics.items()}
        return LocalState(shared, copies), statistics, means | ended._asdict()

    def step(self, state: LocalState, iterations: int) -> tuple[LocalState, Metrics]:
        sums: Metrics = {}
        for _ in range(iterations):
            if self.job is not None:
                self.job.watchdog.at("learning", int(state.shared.iteration), often=True)
            state, statistics, metrics = self._local(state)
            state = state._replace(shared=self.average(state.shared, statistics))
            sums = {name: sums.get(name, 0.0) + value for name, value in metrics.items()}
        found = total(self.ranks, sums)
        number, returns, length = (found.pop(name) for name in rollout.Episodes._fields)
        mean = {"episode_return": returns / number, "episode_length": length / number} if number else {}
        found = {name: value / (iterations * self.ranks.size) for name, value in found.items()}
        return state, found | mean | {"episodes": number, "updates": state.shared.learner.step}

    def average(self, shared: SharedState, statistics: PyTree) -> SharedState:
        """Numbers that are the same on all ranks, such as counters, stay as they are."""

        def mean(old: Array, total: np.ndarray) -> Array:
            return jnp.asarray(total / self.ranks.size, old.dtype)

        learner = jax.tree.map(mean, shared.learner, total(self.ranks, shared.learner))
        if self.agent.update_statistics is not None:
            seen = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), total(self.ranks, statistics))
            learner = self.agent.update_statistics(learner, seen)
        return shared._replace(learner=learner)

    def learner(self, state: LocalState) -> LearnerState:
        return state.shared.learner

    def counters(self, state: LocalState) -> dict[str, Array]:
        shared = state.shared
        return {"iteration": shared.iteration, "env_steps": shared.env_steps, "updates": shared.learner.step}

    def store(self, directory: Path, keep: int) -> Store:
        return LocalStore(self, directory, keep)

    def describe(self) -> str:
        return f"{self.ranks.size} rank(s)"


class LocalStore:
    """What ranks share is saved once, by rank 0; copies by the rank that holds them. States of all seeds."""

    def __init__(self, flow: LocalUpdates, directory: Path, keep: int) -> None:
        self.flow, self.rank = flow, flow.ranks.rank
        self._files = ShardedCheckpointer(directory, [self.rank], flow.ranks, keep)

    def latest(self) -> int | None:
        return self._files.latest()

    def save(self, step: int, states: Sequence[LocalState], host: dict[str, Any]) -> None:
        parts = {self.rank: [state.own for state in states]}
        self._files.save(step, [state.shared for state in states], parts, host)

    def restore(self, shapes: Sequence[LocalState]) -> tuple[int, list[LocalState], dict[str, Any]]:
        shared, own = [s.shared for s in shapes], [s.own for s in shapes]
        step, shared, parts, host = self._files.restore(shared, own, new_parts=True)
        if self.flow.job is not None and host["parts"] != self.flow.ranks.size:
            raise UserError(f"this run has the copies of {host['parts']} rank(s): resume it with as many")
        return step, [LocalState(*state) for state in zip(shared, parts[self.rank], strict=True)], host


def make(config: Config, env: Env, agent: Agent, replay: Replay | None, total_env_steps: int) -> LocalUpdates:
    if replay is not None:
        raise UserError(
            "workflow.name: local updates are for agents that learn from unrolls, such as a2c or ppo"
        )
    return LocalUpdates(config, env, agent, total_env_steps)
