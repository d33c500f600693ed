"""A learner's computation on unrolls: the fused workflow's iteration without acting.

    fill     unroll → running statistics → replay
    iterate  fill, then K × (sample, gradient, apply, prioritise); or one batch of unrolls, learned from once

Lazy writing (PALRL, Zhang et al. 2021): several unrolls of an iteration go into the replay at once, so that
its tree is updated once for all of them.

Several learners take every step together, and the mean of their gradients, one flattened message, keeps them
equal bit for bit. With `average_every` H > 1 each learns alone, and after H iterations all continue from the
mean of their parameters, targets and moments (local SGD; McMahan et al. 2017, Stich 2019).

In mode `own` each learner has its own actors and replay. In mode `shared` the first has all of them and sends
every learner an equal part of each batch.

Unrolls of different actors do not continue each other, so the last step of an unroll ends the windows that
reach it: they are shorter and bootstrap there (metric window_used, `check_windows`). Where all unrolls come
from one actor and none is left out they do continue, and windows cross them: with `actors: 1`, in lock-step
and in `dyna`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxrl_hpc import rollout
from jaxrl_hpc.comm.collectives import Collectives, broadcast, fingerprint
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.replay.global_sampling import part_of
from jaxrl_hpc.types import Agent, Array, Batch, Env, LearnerState, Metrics, PyTree, Replay, Transition
from jaxrl_hpc.workflows import update as learning
from jaxrl_hpc.workflows.config import DistributedConfig

log = logging.getLogger(__name__)
LearnerAndReplay = tuple[LearnerState, PyTree]


def check_windows(agent: Agent, replay: Replay | None, unroll_length: int, cut: bool, instead: str) -> None:
    """Refuse windows longer than an unroll where unrolls cut them; `instead` names another remedy."""
    if replay is None or not cut or agent.needs.length == 1:
        return
    if agent.needs.length > unroll_length:
        raise UserError(
            f"workflow.unroll_length is {unroll_length}: windows of the replay end with their unroll, so "
            f"none could have the agent's {agent.needs.length} steps (agent.n_step, or burn_in + length); "
            f"set it to {agent.needs.length} or more{instead}"
        )
    mean = agent.needs.length - agent.needs.length * (agent.needs.length - 1) / (2 * unroll_length)
    if mean < 0.9 * agent.needs.length:
        log.warning(
            "windows of the replay end with their unroll: of %d steps they have %.1f on average (metric "
            "window_used); a longer workflow.unroll_length loses less%s",
            agent.needs.length,
            mean,
            instead,
        )


class ActorLearnerState(NamedTuple):
    """A learner between two iterations. Only the replay differs among learners."""

    learner: LearnerState
    replay: PyTree  # () for agents that learn from trajectories, and where another learner has it
    key: Array  # [] never consumed: folded with the iteration
    iteration: Array  # [] int32, warm-up included: the version of the parameters
    env_steps: Array  # [] int32, of all learners


class LearnerGroup(NamedTuple):
    """The learners of a job, as one of them sees it."""

    size: int
    number: int
    shared: bool  # the first shares batches out
    collectives: Collectives | None  # None: alone
    every_gradient: bool = True  # is averaged; False: learners are, now and then (`LearnerPrograms.average`)

    @property
    def has_data(self) -> bool:
        return not self.shared or self.number == 0

    def total(self, tree: PyTree) -> PyTree:
        """The sum over learners, the same bits on all."""
        if self.collectives is None:
            return tree
        return self.collectives("add", jax.tree.map(lambda x: x[None], tree))

    @property
    def reduce(self) -> learning.Reduce:
        return learning.Reduce(self.mean if self.every_gradient else lambda grads: grads, self.total)

    def mean(self, tree: PyTree) -> PyTree:
        return tree if self.collectives is None else jax.tree.map(lambda x: x / self.size, self.total(tree))


class LearnerSettings(NamedTuple):
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

    @classmethod
    def of_one_rank(cls, config: DistributedConfig, total_env_steps: int) -> LearnerSettings:
        """Settings of a rank that acts and learns from its own unrolls, one after the other."""
        return cls(
            copies=config.num_envs,
            length=config.unroll_length,
            updates=config.updates_per_iteration,
            batch=1,
            total_env_steps=total_env_steps,
            priorities=config.actor_priorities,
            continuous=not config.cuts_windows,
            served=1,
        )


class LearnerPrograms:
    """Functions of one learner, to be compiled. Unrolls are sequences of (trajectory [T, B], priority)."""

    def __init__(self, settings: LearnerSettings, env: Env, agent: Agent, replay: Replay | None) -> None:
        self.settings, self.env, self.agent, self.replay = settings, env, agent, replay

    def init(self, key: Array, hypers: dict[str, dict[str, Array]], group: LearnerGroup) -> ActorLearnerState:
        agent_key, _, run_key = jax.random.split(key, 3)  # actors use the second
        learner = self.agent.init(agent_key, hypers["agent"])
        memory: PyTree = ()
        if self.replay and group.has_data:
            memory = self.replay.init(self._example(learner), hypers["replay"])
        return ActorLearnerState(learner, memory, run_key, jnp.int32(0), jnp.int32(0))

    def _example(self, learner: LearnerState) -> Transition:
        """One step without leading axes; of `learner` only shapes matter."""
        ids = jnp.arange(self.settings.copies, dtype=jnp.int32)
        copies = jax.eval_shape(lambda key: rollout.start(self.env, self.agent, key, ids), jax.random.key(0))
        actor = jax.eval_shape(self.agent.actor, learner)
        return rollout.example_transition(self.env, self.agent, actor, copies)

    def fill(
        self, state: ActorLearnerState, unrolls: Sequence[tuple[Transition, PyTree]], group: LearnerGroup
    ) -> ActorLearnerState:
        """Add unrolls without learning; `unrolls` is empty where another learner has them."""
        return self._take(state, unrolls, group)[0]

    def _take(
        self, state: ActorLearnerState, unrolls: Sequence[tuple[Transition, PyTree]], group: LearnerGroup
    ) -> tuple[ActorLearnerState, Transition | None]:
        agent, settings = self.agent, self.settings
        env_steps = state.env_steps + settings.steps_per_iteration
        progress = env_steps.astype(jnp.float32) / settings.total_env_steps
        learner, memory = state.learner._replace(progress=progress), state.replay
        trajectory = None
        if unrolls:
            trajectory = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *(t for t, _ in unrolls))
        if agent.statistics is not None and agent.update_statistics is not None:
            sums = self._moments(learner, trajectory, group)
            learner = agent.update_statistics(learner, sums)
        if self.replay and unrolls:
            memory = self._add(memory, unrolls)
        iteration = state.iteration + 1
        return ActorLearnerState(learner, memory, state.key, iteration, env_steps), trajectory

    def _add(self, memory: PyTree, unrolls: Sequence[tuple[Transition, PyTree]]) -> PyTree:
        """Unrolls one after the other in time: one write, and one update of the replay's tree for all."""
        assert self.replay is not None
        block, priority = jax.tree.map(lambda *x: jnp.concatenate(x), *unrolls)
        if not self.settings.continuous:
            ends = slice(self.settings.length - 1, None, self.settings.length)
            block = block._replace(last=block.last.at[ends].set(True))
        return self.replay.add(memory, block, priority if self.settings.priorities else None)

    def _moments(self, learner: LearnerState, trajectory: Transition | None, group: LearnerGroup) -> PyTree:
        """Statistics of the unrolls of all learners."""
        assert self.agent.statistics is not None
        if trajectory is not None:
            return group.total(self.agent.statistics(learner, trajectory))
        like = jax.eval_shape(self.agent.statistics, learner, self.unroll_shape(learner, self.settings.batch))
        return group.total(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), like))

    def unroll_shape(self, learner: PyTree, number: int) -> Transition:
        """Shapes of `number` unrolls side by side."""
        step = jax.eval_shape(self._example, learner)
        lead = (self.settings.length, number * self.settings.copies)
        shape: Transition = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*lead, *x.shape), x.dtype), step)
        return shape

    def iterate(
        self,
        state: ActorLearnerState,
        sums: Metrics,
        unrolls: Sequence[tuple[Transition, PyTree]],
        group: LearnerGroup,
    ) -> tuple[ActorLearnerState, Metrics]:
        """One iteration; metrics are added to `sums`."""
        state, trajectory = self._take(state, unrolls, group)
        key = jax.random.fold_in(state.key, state.iteration)
        if group.size > 1 and not group.shared:
            key = jax.random.fold_in(key, group.number)  # separate draws
        learn = self._from_replay if self.replay else self._from_trajectory
        learner, memory, metrics = learn(state, trajectory, key, group)
        metrics = {name: sums.get(name, 0.0) + value for name, value in metrics.items()}
        return state._replace(learner=learner, replay=memory), metrics

    def gradient(
        self,
        state: ActorLearnerState,
        sums: Metrics,
        unrolls: Sequence[tuple[Transition, PyTree]],
        group: LearnerGroup,
    ) -> tuple[ActorLearnerState, Metrics, Array, PyTree]:
        """An iteration without its end -> (…, this learner's gradients [F], statistics of all batches)."""
        found: list[tuple[PyTree, PyTree]] = []

        def keep(learner: LearnerState, grads: PyTree, statistics: PyTree = ()) -> LearnerState:
            found.append((grads, statistics))
            return learner

        agent = self.agent._replace(apply=keep)
        programs = LearnerPrograms(self.settings, self.env, agent, self.replay)
        state, sums = programs.iterate(state, sums, unrolls, group._replace(every_gradient=False))
        [(grads, statistics)] = found  # one update per iteration
        return state, sums, ravel_pytree(grads)[0], statistics

    def apply(
        self, state: ActorLearnerState, total: Array, statistics: PyTree, group: LearnerGroup
    ) -> ActorLearnerState:
        """The end of an iteration: the sum of all learners' gradients [F] has come."""
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), self.grads_shape(state.learner))
        grads = jax.tree.map(lambda x: x / group.size, ravel_pytree(zeros)[1](total))
        return state._replace(learner=self.agent.apply(state.learner, grads, statistics))

    def average(self, state: ActorLearnerState, group: LearnerGroup) -> ActorLearnerState:
        """Parameters, targets and moments become their means over learners; the same bits on all."""
        learner = state.learner
        parts = (learner.params, learner.target, learner.opt)
        params, target, opt = learning.average_floats(parts, group.mean)
        return state._replace(learner=learner._replace(params=params, target=target, opt=opt))

    def _from_trajectory(
        self, state: ActorLearnerState, trajectory: Transition | None, key: Array, group: LearnerGroup
    ) -> tuple[LearnerState, PyTree, Metrics]:
        if group.shared:
            shape = self.unroll_shape(state.learner, self.settings.batch)
            whole = broadcast(group.collectives, trajectory, shape)
            columns = group.number + group.size * jnp.arange(whole.last.shape[1] // group.size)
            trajectory = jax.tree.map(lambda x: x[:, columns], whole)
            key = jax.random.fold_in(key, group.number)
        assert trajectory is not None
        batch = learning.as_batch(trajectory)
        learner, metrics, _ = learning.learn(self.agent, state.learner, batch, key, group.reduce)
        return learner, (), metrics

    def _from_replay(
        self, state: ActorLearnerState, _: Transition | None, key: Array, group: LearnerGroup
    ) -> tuple[LearnerState, PyTree, Metrics]:
        update = self._update(group)
        if self.settings.updates == 1:
            learner, memory, metrics = update((state.learner, state.replay), key)
            return learner, memory, metrics

        def one(carry: LearnerAndReplay, update_key: Array) -> tuple[LearnerAndReplay, Metrics]:
            learner, memory, metrics = update(carry, update_key)
            return (learner, memory), metrics

        keys = jax.random.split(key, self.settings.updates)
        (learner, memory), stacked = jax.lax.scan(one, (state.learner, state.replay), keys)
        return learner, memory, {name: value.mean() for name, value in stacked.items()}

    def _update(self, group: LearnerGroup) -> Callable[..., tuple[LearnerState, PyTree, Metrics]]:
        agent, replay = self.agent, self.replay
        assert replay is not None

        def alone(carry: LearnerAndReplay, key: Array) -> tuple[LearnerState, PyTree, Metrics]:
            return learning.learn_from_replay(agent, replay, *carry, key, group.reduce)

        def together(carry: LearnerAndReplay, key: Array) -> tuple[LearnerState, PyTree, Metrics]:
            learner, memory = carry
            sample_key, learn_key = jax.random.split(key)
            learn_key = jax.random.fold_in(learn_key, group.number)
            mine = replay.sample(memory, sample_key, learner.progress) if group.has_data else None
            whole = broadcast(group.collectives, mine, self._sample_shape(learner))
            part = part_of(whole, jnp.int32(group.number), group.size)
            learner, metrics, priority = learning.learn(agent, learner, part, learn_key, group.reduce)
            metrics |= learning.replay_metrics(agent, whole)
            assert group.collectives is not None
            everyone = group.collectives("gather", priority[None])  # [learners, N / learners]
            if group.has_data:
                memory = replay.prioritise(memory, whole.index, everyone.T.reshape(-1))
            return learner, memory, metrics

        return together if group.shared else alone

    def grads_shape(self, learner: LearnerState) -> PyTree:
        """Shapes of the agent's gradients; for agents without minibatches."""
        if self.replay:
            batch = self._sample_shape(learner)
        else:
            batch = jax.eval_shape(learning.as_batch, self.unroll_shape(learner, self.settings.batch))
        return jax.eval_shape(self.agent.gradient, learner, batch, jax.random.key(0))[0]

    def _sample_shape(self, learner: LearnerState) -> Batch:
        """Shape of a whole batch, of all learners together."""
        window, size = self.agent.needs.length, self.agent.needs.batch_size
        step = self.unroll_shape(learner, 1)
        data = jax.tree.map(lambda x: jax.ShapeDtypeStruct((window, size, *x.shape[2:]), x.dtype), step)
        weight, index = (jax.ShapeDtypeStruct((size,), kind) for kind in (jnp.float32, jnp.int32))
        return Batch(data, weight, index)  # type: ignore[arg-type]


def mark(state: ActorLearnerState) -> Array:
    """Fingerprint of the learner, by which learners that have diverged are found."""
    return fingerprint(state.learner)
