"""A worker of a parameter server: acts and learns alone for H iterations between exchanges.

    install parameters → H × ( unroll [T, B] → replay → K × learn ) → change to push

Its iteration is the learner's (workflows/actor_learner/learner.py) on its own unrolls; with one worker this
is `fused`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_hpc import rollout
from jaxrl_hpc.rollout import Episodes, RolloutState
from jaxrl_hpc.types import Agent, Array, Env, LearnerState, Metrics, PyTree, Replay, Transition
from jaxrl_hpc.workflows import update
from jaxrl_hpc.workflows.actor_learner import learner
from jaxrl_hpc.workflows.actor_learner.learner import LearnerGroup, LearnerPrograms
from jaxrl_hpc.workflows.parameter_server.exchange_schemes import ExchangeScheme

ALONE = LearnerGroup(1, 0, False, None)


class CentralState(NamedTuple):
    """The same for all workers at the end of a chunk."""

    central: PyTree  # what is stored for all
    number: Array  # [] int32 exchanges so far
    updates: Array  # [] int32, of all workers


class WorkerState(NamedTuple):
    """One worker."""

    state: learner.ActorLearnerState
    rollout: RolloutState
    central: PyTree  # pulled at its last exchange
    since: Array  # [] int32 exchanges before that
    exchanges: Array  # [] int32 its own so far
    merged: PyTree  # learner.aux, running statistics, when all workers last merged them


class ParameterServerState(NamedTuple):
    shared: CentralState
    own: WorkerState


class WorkResult(NamedTuple):
    """Result of the work between two exchanges."""

    change: Array  # [P]
    metrics: Metrics  # sums over iterations
    ended: Episodes
    unrolls: PyTree  # [H, T, B] for the others' replays; () if each keeps its own


class WorkerPrograms:
    """Functions of one worker, to be compiled."""

    def __init__(
        self,
        settings: learner.LearnerSettings,
        env: Env,
        replay: Replay | None,
        scheme: ExchangeScheme,
        iterations: int,
        warmup_iterations: int,
        everyone: bool,
    ) -> None:
        self.settings, self.env, self.agent, self.replay = settings, env, scheme.agent, replay
        self.scheme, self.iterations, self.warmup_iterations = scheme, iterations, warmup_iterations
        self.everyone = everyone  # unrolls go into all replays
        self.learning = LearnerPrograms(settings, env, scheme.agent, replay)

    def init(self, key: Array, hypers: PyTree, number: Array, several: bool) -> ParameterServerState:
        """Worker `number`, fresh."""
        state = self.learning.init(key, hypers, ALONE)
        if several:
            state = state._replace(key=jax.random.fold_in(state.key, number))
        rollout_key = jax.random.split(key, 3)[1]  # as in the fused workflow
        ids = number * self.settings.copies + jnp.arange(self.settings.copies, dtype=jnp.int32)
        running = rollout.start(self.env, self.agent, rollout_key, ids)
        central = self.scheme.first(state.learner)
        zeros = [jnp.int32(0) for _ in range(4)]
        merged = jax.tree.map(jnp.copy, state.learner.aux)  # a buffer of its own: both are donated
        own = WorkerState(state, running, jax.tree.map(jnp.copy, central), zeros[0], zeros[1], merged)
        return ParameterServerState(CentralState(central, zeros[2], zeros[3]), own)

    def metric_names(self, own: WorkerState) -> list[str]:
        """Metrics of an iteration; `own` may have shapes."""
        one = self.learning.unroll_shape(own.state.learner, 1)
        rated: PyTree = ()
        if self.settings.priorities:
            rated = jax.ShapeDtypeStruct(one.last.shape, jnp.float32)
        names = jax.eval_shape(
            lambda s, u: self.learning.iterate(s, {}, [u], ALONE)[1], own.state, (one, rated)
        )
        return sorted(names)

    def _act(
        self, agent: Agent, learner: LearnerState, running: RolloutState
    ) -> tuple[RolloutState, Transition, PyTree, Episodes]:
        actor = agent.actor(learner)
        running, trajectory, ended = rollout.unroll(self.env, agent, actor, running, self.settings.length)
        rated: PyTree = ()
        if self.settings.priorities:
            rated = update.initial_priorities(agent, actor, trajectory)
        return running, trajectory, rated, ended

    def warmup(self, own: WorkerState) -> WorkerState:
        """Fill the replay."""

        def one(_: Array, carry: PyTree) -> PyTree:
            state, running = carry
            running, trajectory, rated, _ended = self._act(self.agent, state.learner, running)
            return self.learning.fill(state, [(trajectory, rated)], ALONE), running

        state, running = jax.lax.fori_loop(0, self.warmup_iterations, one, (own.state, own.rollout))
        return own._replace(state=state, rollout=running)

    def work(self, own: WorkerState, sums: Metrics, env_steps: Array) -> tuple[WorkerState, WorkResult]:
        """From the parameters pulled to the change to push; `env_steps` of all workers at the pull."""
        installed = self.scheme.install(own.state.learner, own.central)
        state = own.state._replace(learner=installed, env_steps=env_steps)

        def one(carry: PyTree, _: None) -> tuple[PyTree, PyTree]:
            state, running, sums = carry
            running, trajectory, rated, ended = self._act(self.agent, state.learner, running)
            state, sums = self.learning.iterate(state, sums, [(trajectory, rated)], ALONE)
            return (state, running, sums), (ended, trajectory if self.everyone else ())

        carry, (ended, unrolls) = jax.lax.scan(one, (state, own.rollout, sums), None, self.iterations)
        state, running, sums = carry
        count = self.iterations * (self.settings.updates if self.replay else 1)
        change = self.scheme.change(state.learner, own.central, count)
        own = own._replace(state=state, rollout=running)
        return own, WorkResult(change, sums, Episodes(*(x.sum() for x in ended)), unrolls)

    def absorb(self, own: WorkerState, unrolls: Transition) -> WorkerState:
        """Another worker's unrolls [H, T, B] into this one's replay."""
        assert self.replay is not None
        replay = self.replay

        def one(memory: PyTree, trajectory: Transition) -> tuple[PyTree, tuple[()]]:
            whole = trajectory._replace(last=trajectory.last.at[-1].set(True))
            return replay.add(memory, whole, None), ()

        memory, _ = jax.lax.scan(one, own.state.replay, unrolls)
        return own._replace(state=own.state._replace(replay=memory))
