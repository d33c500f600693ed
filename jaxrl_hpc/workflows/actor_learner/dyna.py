"""Parallel Dyna: one rank acts in the real environment, the others learn a model and plan with it.

    rank N − 1:   real environment ── unrolls ──→ rank 0:  replay ── batches, a part each ──→ ranks 0 … N − 2
        ↑──────────────────── parameters ←── mean of gradients: model, simulated and real batches ←─┘

Acting and planning never wait for each other: until a new unroll arrives, planners continue with batches from
the replay, up to `max_updates` per unroll. So the number of simulated steps per real one lies between two
bounds: K and max_updates batches per unroll, each with the agent's `planning_updates` simulated ones (Dyna-Q,
agents/dyna_q.py: prioritised sweeping, a trusted model only).
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, TextIO

import jax
import jax.numpy as jnp

from jaxrl_hpc.comm.two_sided import TWO_SIDED
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.ops import streams
from jaxrl_hpc.schema import static
from jaxrl_hpc.types import Agent, Array, Env, Metrics, Replay, Workflow
from jaxrl_hpc.workflows.actor_learner.config import ActorLearnerConfig, make_learning
from jaxrl_hpc.workflows.actor_learner.learner import ActorLearnerState
from jaxrl_hpc.workflows.actor_learner.runtime import ActorLearner


class Config(ActorLearnerConfig):
    """Parallel Dyna: learners are planners."""

    name: Literal["dyna"] = "dyna"
    learner_mode: Literal["shared"] = static(
        "shared", "rank 0 has the replay and distributes batches to all planners"
    )
    replay_unroll: ClassVar[int] = 1  # plan with the newest state
    max_updates: int = static(
        4, "upper bound on replay samples learned from per unroll, while planners wait for the next one", ge=1
    )

    @property
    def cuts_windows(self) -> bool:
        """One actor sends in order: only dropped unrolls leave gaps."""
        return self.max_lag is not None and not self.lockstep


class Dyna(ActorLearner):
    """Actors and learners, with planning until the next unroll arrives."""

    config: Config

    def start(self, state: ActorLearnerState) -> ActorLearnerState:
        state, job = super().start(state), self.job
        self._extra: dict[int, int] = {}  # replayed: iteration -> samples beyond K
        self._written: TextIO | None = None
        if job is None:
            return state
        self._replays = bool(job.replay_schedule)
        if self._replays:
            path = Path(job.replay_schedule) / "planning.csv"
            if not path.is_file():
                raise UserError(f"run.replay_schedule: there is no {path}")
            self._extra = {
                int(iteration): int(extra)
                for iteration, extra in (line.split(",") for line in path.read_text().splitlines())
            }
        if job.record_schedule and self.ranks.first:
            self._written = (job.folder / "planning.csv").open("a" if self.restored else "w")
        return state

    def compile(self, state: ActorLearnerState) -> None:
        super().compile(state)
        sums = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in self._names}
        number = jax.ShapeDtypeStruct((), jnp.int32)
        self._programs["plan"] = self._program(self._plan, (0, 1), state, sums, number)

    def _plan(
        self, state: ActorLearnerState, sums: Metrics, number: Array
    ) -> tuple[ActorLearnerState, Metrics]:
        """One more sample of the replay, the `number`-th since the last unroll."""
        key = jax.random.fold_in(state.key, state.iteration)  # the iteration splits this one
        key = jax.random.fold_in(streams.stream(key, streams.EXTRA_SAMPLES), number)
        if self.group.size > 1:
            key = jax.random.fold_in(key, self.group.number)
        learner, memory, metrics = self.learning._update(self.group)((state.learner, state.replay), key)
        metrics = {name: sums.get(name, 0.0) + value for name, value in metrics.items()}
        return state._replace(learner=learner, replay=memory), metrics

    def step(self, state: ActorLearnerState, iterations: int) -> tuple[ActorLearnerState, Metrics]:
        sums = {name: jnp.float32(0) for name in self._names}
        version, samples = int(state.iteration), 0
        for number in range(version + 1, version + iterations + 1):
            state, sums = self._programs["iterate"](state, sums, self._take(number - 1))
            extra = 0
            while self._goes_on(number, extra):
                extra += 1
                state, sums = self._programs["plan"](state, sums, jnp.int32(extra))
                jax.block_until_ready(sums)  # poll for unrolls after it, not while it is queued
            samples += 1 + extra  # an iteration's K samples report one mean
            if self._written:
                self._written.write(f"{number},{extra}\n")
            if number % self.config.publish_every == 0:
                self.publish(state, number)
        if self._written:
            self._written.flush()
        metrics = self._metrics(state, sums, max(samples, 1))
        least = self.learning.settings.updates - 1
        return state, metrics | {"samples_per_unroll": jnp.float32(least + samples / max(iterations, 1))}

    def _goes_on(self, iteration: int, extra: int) -> bool:
        """Whether to plan once more before the next unroll; the same for all planners."""
        if self._replays:
            return extra < self._extra.get(iteration, 0)
        if self.config.lockstep or extra >= self.config.max_updates - self.learning.settings.updates:
            return False
        waiting = False
        if self.mailbox is not None:
            self.mailbox.poll(1 - len(self.mailbox.queue))
            waiting = bool(self.mailbox.queue)
        return not self.ranks.share(waiting)


def make(config: Config, env: Env, agent: Agent, replay: Replay | None, total_env_steps: int) -> Workflow:
    if replay is None:
        raise UserError("workflow dyna: planning needs a replay to start from; use an agent such as dyna_q")
    if config.batch_trajectories > 1:
        raise UserError("workflow.batch_trajectories: planners take one unroll at a time; set it to 1")
    if config.actors > 1:
        raise UserError("workflow.actors: one rank acts in the real environment; leave it at 0 or 1")
    if config.max_updates < config.updates_per_iteration:
        raise UserError(
            f"workflow.max_updates is {config.max_updates}: it must be at least "
            f"workflow.updates_per_iteration = {config.updates_per_iteration}"
        )
    config = config.model_copy(update={"actors": 1})
    return Dyna(config, TWO_SIDED, *make_learning(config, env, agent, replay, total_env_steps))
