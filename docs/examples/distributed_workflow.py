"""A complete distributed workflow in one file: local updates and averaging (McMahan et al. 2017, Stich 2019).

    rank r:  H × ( unroll [T, B] → learn )  →  learner = mean over ranks  →  again

Every rank has its own environment copies and learns alone for H iterations; then all of them continue from
the average. The only communication is one exchange per H iterations. For agents that learn from unrolls.

What makes it distributed: a `DistributedConfig`, a state with one field that belongs to the rank, and a store
for such states. In this folder:

    mpiexec -n 2 jaxrl-hpc train distributed_workflow.yaml
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc import rollout
from jaxrl_hpc.comm.ranks import world
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.schema import static
from jaxrl_hpc.types import Agent, Array, Env, Job, LearnerState, Metrics, PyTree, Replay, Role, Store
from jaxrl_hpc.workflows.base import DistributedConfig, DistributedWorkflow
from jaxrl_hpc.workflows.rank_store import RankStore
from jaxrl_hpc.workflows.update import as_batch, learn


class Config(DistributedConfig):
    """What a config may set. `num_envs` are the copies of one rank."""

    local_iterations: int = static(4, "H, iterations between averages", ge=1)


class LocalState(NamedTuple):
    """The whole run as far as this rank holds it. The same on all ranks between two steps, but for `own`."""

    learner: LearnerState
    key: Array  # [] never consumed: folded with iteration and rank
    iteration: Array  # [] int32 averages taken
    env_steps: Array  # [] int32 of all ranks
    own: rollout.RolloutState


class LocalUpdates(DistributedWorkflow):
    """One compiled program between two exchanges; the exchange itself is the host's."""

    def __init__(self, config: Config, env: Env, agent: Agent, total_env_steps: int) -> None:
        self.config, self.env, self.agent, self.total_env_steps = config, env, agent, total_env_steps
        self.ranks = world()
        self.per_iteration = config.num_envs * config.unroll_length * self.ranks.size
        self.steps_per_iteration = config.local_iterations * self.per_iteration
        self._local: Any = jax.jit(self.local)

    def join(self, job: Job) -> Role:
        self.job = job
        return Role(True, self.ranks)  # all ranks learn; a rank with learns=False would run `assist`

    def init(self, key: Array, hypers: dict[str, dict[str, Array]]) -> LocalState:
        agent_key, rollout_key, run_key = jax.random.split(key, 3)
        learner = self.agent.init(agent_key, hypers["agent"])
        ids = self.ranks.rank * self.config.num_envs + jnp.arange(self.config.num_envs, dtype=jnp.int32)
        copies = rollout.start(self.env, self.agent, rollout_key, ids)
        return LocalState(learner, run_key, jnp.int32(0), jnp.int32(0), copies)

    def compile(self, shape: LocalState) -> None:
        self._local = jax.jit(self.local).lower(shape).compile()

    def local(self, state: LocalState) -> tuple[LocalState, PyTree, Metrics]:
        """H iterations of this rank -> (state, sums for running statistics, means and sums of metrics)."""
        agent, common = self.agent, state.learner
        key = jax.random.fold_in(jax.random.fold_in(state.key, state.iteration), self.ranks.rank)

        def iterate(state: LocalState, key: Array):
            env_steps = state.env_steps + self.per_iteration
            learner = state.learner._replace(progress=env_steps.astype(jnp.float32) / self.total_env_steps)
            copies, trajectory, ended = rollout.unroll(
                self.env, agent, agent.actor(learner), state.own, self.config.unroll_length
            )
            # around the mean that all ranks know, so that they can be added
            statistics = agent.statistics(common, trajectory) if agent.statistics else ()
            learner, metrics, _ = learn(agent, learner, as_batch(trajectory), key)
            state = state._replace(learner=learner, env_steps=env_steps, own=copies)
            return state, (statistics, metrics, ended)

        keys = jax.random.split(key, self.config.local_iterations)
        state, (statistics, metrics, ended) = jax.lax.scan(iterate, state, keys)
        statistics, ended = jax.tree.map(lambda x: x.sum(axis=0), (statistics, ended))
        means = {name: value.mean() for name, value in metrics.items()}
        return state._replace(iteration=state.iteration + 1), statistics, means | ended._asdict()

    def step(self, state: LocalState, iterations: int) -> tuple[LocalState, Metrics]:
        sums: Metrics = {}
        for _ in range(iterations):
            if self.job is not None:
                self.job.watchdog.at("learning", int(state.iteration), often=True)
            state, statistics, metrics = self._local(state)
            state = self.average(state, statistics)
            sums = {name: sums.get(name, 0.0) + value for name, value in metrics.items()}
        found = self.ranks.add_trees(sums)
        number, returns, length = (found.pop(name) for name in rollout.Episodes._fields)
        mean = {"episode_return": returns / number, "episode_length": length / number} if number else {}
        found = {name: value / (iterations * self.ranks.size) for name, value in found.items()}
        return state, found | mean | {"episodes": number, "updates": state.learner.step}

    def average(self, state: LocalState, statistics: PyTree) -> LocalState:
        """Numbers that are the same on all ranks, such as counters, stay as they are."""

        def mean(old: Array, total: np.ndarray) -> Array:
            return jnp.asarray(total / self.ranks.size, old.dtype)

        learner = jax.tree.map(mean, state.learner, self.ranks.add_trees(state.learner))
        if self.agent.update_statistics is not None:
            seen = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), self.ranks.add_trees(statistics))
            learner = self.agent.update_statistics(learner, seen)
        return state._replace(learner=learner)

    def store(self, directory: Path, keep: int) -> Store:
        return RankStore(self.ranks, directory, keep, own="own", inspects=self.job is None)


def make(config: Config, env: Env, agent: Agent, replay: Replay | None, total_env_steps: int) -> LocalUpdates:
    if replay is not None:
        raise UserError(
            "workflow.name: local updates are for agents that learn from unrolls, such as a2c or ppo"
        )
    return LocalUpdates(config, env, agent, total_env_steps)
