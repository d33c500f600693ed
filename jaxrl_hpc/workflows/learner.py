"""What a learner computes with an unroll: the fused workflow's iteration without its acting.

    fill     unroll → running statistics → replay
    iterate  fill, then K × (sample, gradient, apply, prioritise); or one batch of unrolls, learned from once

Several learners take every step together, and the mean of their gradients, one flattened message, keeps them
the same bit for bit. In mode `own` each has its actors and its replay. In mode `shared` the first has all of
them and gives every learner an equal part of each batch.

Unrolls of different actors do not continue each other, so the last step of an unroll ends the windows that
reach it: they are shorter and bootstrap there. In lock-step they do continue, and windows cross unrolls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_hpc import rollout
from jaxrl_hpc.comm.collectives import Collectives, fingerprint
from jaxrl_hpc.comm.sharing import share
from jaxrl_hpc.replay.global_sampling import part_of
from jaxrl_hpc.types import Agent, Array, Batch, Env, LearnerState, Metrics, PyTree, Replay, Transition
from jaxrl_hpc.workflows import learning


class State(NamedTuple):
    """A learner between two iterations. Only the replay differs among learners."""

    learner: LearnerState
    replay: PyTree  # () for agents that learn from trajectories, and where another learner has it
    key: Array  # [] never consumed: folded with the iteration
    iteration: Array  # [] int32, warm-up included: the version of the parameters
    env_steps: Array  # [] int32, of all learners


class Team(NamedTuple):
    """The learners of a job, as one of them sees it."""

    size: int
    number: int
    shared: bool  # the first shares batches out
    collectives: Collectives | None  # None: alone

    @property
    def has_data(self) -> bool:
        return not self.shared or self.number == 0

    def total(self, tree: PyTree) -> PyTree:
        """The sum over learners, the same bits on all."""
        if self.collectives is None:
            return tree
        return self.collectives("add", jax.tree.map(lambda x: x[None], tree))

    def mean(self, tree: PyTree) -> PyTree:
        return tree if self.collectives is None else jax.tree.map(lambda x: x / self.size, self.total(tree))


class Settings(NamedTuple):
    copies: int  # B of an unroll
    length: int  # T
    updates: int  # K, per unroll
    batch: int  # unrolls of an iteration
    total_env_steps: int
    priorities: bool  # unrolls come with them
    continuous: bool  # one actor whose unrolls continue each other, none left out
    served: int  # learners that get unrolls

    @property
    def steps_per_iteration(self) -> int:
        return self.served * self.batch * self.copies * self.length


class Learning:
    """Functions of one learner, to be compiled. Unrolls are sequences of (trajectory [T, B], priority)."""

    def __init__(self, settings: Settings, env: Env, agent: Agent, replay: Replay | None) -> None:
        self.settings, self.env, self.agent, self.replay = settings, env, agent, replay

    def init(self, key: Array, hypers: dict[str, dict[str, Array]], team: Team) -> State:
        agent_key, rollout_key, run_key = jax.random.split(key, 3)
        learner = self.agent.init(agent_key, hypers["agent"])
        memory: PyTree = ()
        if self.replay and team.has_data:
            step = jax.eval_shape(lambda: self._one_step(learner, rollout_key))
            example = jax.tree.map(lambda x: jnp.zeros(x.shape[2:], x.dtype), step)
            memory = self.replay.init(example, hypers["replay"])
        return State(learner, memory, run_key, jnp.int32(0), jnp.int32(0))

    def _one_step(self, learner: LearnerState, key: Array) -> Transition:
        ids = jnp.arange(self.settings.copies, dtype=jnp.int32)
        copies = rollout.start(self.env, self.agent, key, ids)
        return rollout.unroll(self.env, self.agent, self.agent.actor(learner), copies, 1)[1]

    def fill(self, state: State, unrolls: Sequence[tuple[Transition, PyTree]], team: Team) -> State:
        """Take unrolls in without learning; `unrolls` is empty where another learner has them."""
        return self._take(state, unrolls, team)[0]

    def _take(
        self, state: State, unrolls: Sequence[tuple[Transition, PyTree]], team: Team
    ) -> tuple[State, Transition | None]:
        agent, settings = self.agent, self.settings
        env_steps = state.env_steps + settings.steps_per_iteration
        progress = env_steps.astype(jnp.float32) / settings.total_env_steps
        learner, memory = state.learner._replace(progress=progress), state.replay
        trajectory = None
        if unrolls:
            trajectory = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *(t for t, _ in unrolls))
        if agent.moments is not None and agent.observe is not None:
            sums = self._moments(learner, trajectory, team)
            learner = agent.observe(learner, sums)
        if self.replay and trajectory is not None:
            ((_, priority),) = unrolls
            if not settings.continuous:
                trajectory = trajectory._replace(last=trajectory.last.at[-1].set(True))
            memory = self.replay.add(memory, trajectory, priority if settings.priorities else None)
        iteration = state.iteration + 1
        return State(learner, memory, state.key, iteration, env_steps), trajectory

    def _moments(self, learner: LearnerState, trajectory: Transition | None, team: Team) -> PyTree:
        """Sums over what all learners took."""
        assert self.agent.moments is not None
        if trajectory is not None:
            return team.total(self.agent.moments(learner, trajectory))
        like = jax.eval_shape(self.agent.moments, learner, self.unroll_shape(learner, self.settings.batch))
        return team.total(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), like))

    def unroll_shape(self, learner: PyTree, number: int) -> Transition:
        """Shapes of `number` unrolls side by side."""
        step = jax.eval_shape(self._one_step, learner, jax.random.key(0))
        width = number * self.settings.copies
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((self.settings.length, width, *x.shape[2:]), x.dtype), step
        )

    def iterate(
        self, state: State, sums: Metrics, unrolls: Sequence[tuple[Transition, PyTree]], team: Team
    ) -> tuple[State, Metrics]:
        """One iteration; metrics are added to `sums`."""
        state, trajectory = self._take(state, unrolls, team)
        key = jax.random.fold_in(state.key, state.iteration)
        if team.size > 1 and not team.shared:
            key = jax.random.fold_in(key, team.number)  # draws of its own
        learn = self._from_replay if self.replay else self._from_trajectory
        learner, memory, metrics = learn(state, trajectory, key, team)
        metrics = {name: sums.get(name, 0.0) + value for name, value in metrics.items()}
        return state._replace(learner=learner, replay=memory), metrics

    def _from_trajectory(
        self, state: State, trajectory: Transition | None, key: Array, team: Team
    ) -> tuple[LearnerState, PyTree, Metrics]:
        if team.shared:
            shape = self.unroll_shape(state.learner, self.settings.batch)
            whole = share(team.collectives, trajectory, shape)
            columns = team.number + team.size * jnp.arange(whole.last.shape[1] // team.size)
            trajectory = jax.tree.map(lambda x: x[:, columns], whole)
            key = jax.random.fold_in(key, team.number)
        assert trajectory is not None
        batch = learning.as_batch(trajectory)
        learner, metrics, _ = learning.learn(self.agent, state.learner, batch, key, team.mean)
        return learner, (), metrics

    def _from_replay(
        self, state: State, _: Transition | None, key: Array, team: Team
    ) -> tuple[LearnerState, PyTree, Metrics]:
        update = self._update(team)
        if self.settings.updates == 1:
            learner, memory, metrics = update((state.learner, state.replay), key)
            return learner, memory, metrics

        def one(carry: tuple[LearnerState, PyTree], update_key: Array):
            learner, memory, metrics = update(carry, update_key)
            return (learner, memory), metrics

        keys = jax.random.split(key, self.settings.updates)
        (learner, memory), stacked = jax.lax.scan(one, (state.learner, state.replay), keys)
        return learner, memory, {name: value.mean() for name, value in stacked.items()}

    def _update(self, team: Team) -> Callable[..., tuple[LearnerState, PyTree, Metrics]]:
        agent, replay = self.agent, self.replay
        assert replay is not None

        def alone(carry: tuple[LearnerState, PyTree], key: Array):
            return learning.learn_from_replay(agent, replay, *carry, key, team.mean)

        def together(carry: tuple[LearnerState, PyTree], key: Array):
            learner, memory = carry
            sample_key, learn_key = jax.random.split(key)
            learn_key = jax.random.fold_in(learn_key, team.number)
            mine = replay.sample(memory, sample_key, learner.progress) if team.has_data else None
            whole = share(team.collectives, mine, self._sample_shape(learner))
            part = part_of(whole, jnp.int32(team.number), team.size)
            learner, metrics, priority = learning.learn(agent, learner, part, learn_key, team.mean)
            assert team.collectives is not None
            everyone = team.collectives("gather", priority[None])  # [learners, N / learners]
            if team.has_data:
                memory = replay.prioritise(memory, whole.index, everyone.T.reshape(-1))
            return learner, memory, metrics

        return together if team.shared else alone

    def _sample_shape(self, learner: LearnerState) -> Batch:
        """Of all learners' parts together."""
        window, size = self.agent.window, self.agent.batch_size
        step = self.unroll_shape(learner, 1)
        data = jax.tree.map(lambda x: jax.ShapeDtypeStruct((window, size, *x.shape[2:]), x.dtype), step)
        weight, index = (jax.ShapeDtypeStruct((size,), kind) for kind in (jnp.float32, jnp.int32))
        return Batch(data, weight, index)  # type: ignore[arg-type]


def mark(state: State) -> Array:
    """A number by which learners that drift apart are found."""
    return fingerprint(state.learner)
