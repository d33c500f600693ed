"""Actors and learners in separate processes over any transport, as a Workflow.

Before `join`, a process can only inspect shapes (as `evaluate` does); `join` makes it a learner or an actor
of its job. A learner's iteration takes unrolls from its mailbox, calls one program and publishes the
parameters. `assist` runs an actor (actor.py). One seed per job; rank 0 evaluates and writes; all
learners take every step together.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.comm.collectives import Collectives, compare_replicas
from jaxrl_hpc.comm.layout import Layout
from jaxrl_hpc.comm.messaging import Control
from jaxrl_hpc.comm.ranks import Ranks
from jaxrl_hpc.comm.roles import Roles, assign
from jaxrl_hpc.comm.transport import BufferSizes, Transport
from jaxrl_hpc.envs.external.host import count_given_up_elsewhere, given_up_counts
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.metrics.trace import Trace
from jaxrl_hpc.types import (
    Array,
    Job,
    Metrics,
    PyTree,
    Role,
    StopRequest,
    Store,
    Transition,
)
from jaxrl_hpc.workflows.actor_learner import staleness
from jaxrl_hpc.workflows.actor_learner.actor import Actor
from jaxrl_hpc.workflows.actor_learner.arrival_log import ArrivalRecorder, ArrivalReplay, file_of
from jaxrl_hpc.workflows.actor_learner.config import ActorLearnerConfig
from jaxrl_hpc.workflows.actor_learner.learner import (
    ActorLearnerState,
    LearnerGroup,
    LearnerPrograms,
    mark,
)
from jaxrl_hpc.workflows.actor_learner.mailbox import ArrivalSchedule, Mailbox, MailboxRules
from jaxrl_hpc.workflows.actor_learner.messages import ActorPrograms, ActorSnapshot, Link, make_acting
from jaxrl_hpc.workflows.actor_learner.overlap import OverlappedLearning, TravellingSum
from jaxrl_hpc.workflows.actor_learner.store import ActorLearnerStore
from jaxrl_hpc.workflows.base import DistributedWorkflow


class ActorLearner(DistributedWorkflow):
    """The workflow.

    Args:
      config: its settings.
      transport: what connects actors and learners; None: a subclass connects them.
      learning: the learner's computation.
      warmup_iterations: iterations of learners that only fill the replay.
    """

    def __init__(
        self,
        config: ActorLearnerConfig,
        transport: Transport | None,
        learning: LearnerPrograms,
        warmup_iterations: int,
    ) -> None:
        self.config, self.transport, self.learning = config, transport, learning
        self.warmup_iterations = warmup_iterations
        self.steps_per_iteration = learning.settings.steps_per_iteration
        self.warmup_steps = warmup_iterations * self.steps_per_iteration
        self.roles = Roles(None, 0, config.learners, 0, learning.settings.served)
        self.ranks = Ranks()  # of the learners
        self.group = self._group(Ranks())
        self.layout = Layout(config.learners, config.learners, 0, (jax.local_devices()[0],))
        self.mailbox: Mailbox | None = None
        self.acting: ActorPrograms
        self.channel: Any = None  # this rank's end
        self.control: Control
        self.restored: ActorSnapshot | None = None  # actors' part of the checkpoint that is being continued
        self.seconds_before = 0.0  # of earlier jobs of the run
        self._last: ActorSnapshot | None = None  # of actors that have been released
        self._left_out = np.zeros(2)  # unrolls of the whole run that were dropped and lost
        self._clock = (0.0, time.perf_counter())  # seconds waited, and when that was
        self._counts: dict[str, int] = {}  # of the channel, up to the last metrics
        self._programs: dict[str, Callable[..., PyTree]] = {}
        self._names: list[str] = []
        self._overlapped: OverlappedLearning | None = None

    # -- joining a job -------------------------------------------------------

    def _group(self, ranks: Ranks) -> LearnerGroup:
        """The learners of this job; before `join` one alone, enough to inspect shapes."""
        shared = self.config.learner_mode == "shared" and self.config.learners > 1
        if ranks.size == 1:
            return LearnerGroup(1, 0, False, None)
        layout = Layout(ranks.size, ranks.size, ranks.rank, (jax.local_devices()[0],))
        collectives = Collectives(layout, ranks.programs, self._ordered)
        return LearnerGroup(ranks.size, ranks.rank, shared, collectives, self.config.average_every == 1)

    @property
    def _ordered(self) -> bool:
        """Whether gradients are added in order of rank: in runs that repeat to the same bits.

        Otherwise MPI chooses the order, and large gradients are not gathered whole on every learner.
        """
        job = self.job
        recorded = job is not None and (job.record_schedule or bool(job.replay_schedule))
        return self.config.lockstep or recorded

    def assign(self, ranks: Ranks) -> Roles:
        """Roles in this job; together with all ranks."""
        config = self.config
        shared = config.learner_mode == "shared"
        self.roles = assign(ranks.comm, ranks.size, ranks.rank, config.learners, config.actors, shared)
        if config.lockstep and self.roles.actors > 1:
            raise UserError(
                f"workflow.lockstep: needs one actor, but this job has {self.roles.actors}: use mpirun -n 2"
            )
        own = ranks.comm.Split(0 if self.roles.learns else 1, ranks.rank)
        self.ranks = Ranks(own)
        if self.roles.learns:
            self.group = self._group(self.ranks)
            self.layout = self.layout._replace(rank=self.ranks.rank)
        return self.roles

    def join(self, job: Job) -> Role:
        if job.seeds > 1:
            raise UserError(
                f"run.seeds is {job.seeds}: with actors on separate ranks a job trains one seed; "
                "start a job per seed with run.seed=…"
            )
        self.job = job
        roles = self.assign(job.ranks)
        self._agree_on_acting(roles, job.hypers)
        self.control = Control(roles.comm)
        self.channel = self.connect(roles)
        return Role(roles.learns, self.ranks)

    def connect(self, roles: Roles) -> Any:
        """This rank's end of the transport; together with all ranks."""
        sizes = BufferSizes(self.acting.message.nbytes, self.acting.params.nbytes, self.config.in_flight)
        assert self.transport is not None
        return (self.transport.learner if roles.learns else self.transport.actor)(roles, sizes)

    def _agree_on_acting(self, roles: Roles, hypers: PyTree) -> None:
        """Checks that all ranks have the same message layouts."""
        self.make_programs(hypers)
        self.acting.message.agree(roles.comm, "the layout of unrolls")

    def make_programs(self, hypers: PyTree) -> None:
        """The actors' programs."""
        settings, learning = self.learning.settings, self.learning
        self.acting = make_acting(
            learning.env,
            learning.agent,
            hypers["agent"],
            copies=settings.copies,
            length=settings.length,
            priorities=settings.priorities,
        )

    def assist(self, stop: StopRequest) -> bool:
        """Act until the learner releases this rank."""
        job = self.job
        assert job is not None, "join comes first"
        trace = Trace(job.ranks.rank, job.profile)
        actor = self.make_actor(job, trace)
        actor.begin(job.key)
        finished = actor.serve(stop)
        job.watchdog.at("finishing", actor.state.sequence, armed=False)
        self.channel.close()
        if job.profile:
            trace.write(job.folder)
        job.ranks.barrier()
        return finished

    def make_actor(self, job: Job, trace: Trace) -> Actor:
        return Actor(
            self.acting,
            Link(self.roles, self.channel, self.control, job.watchdog),
            trace,
            lag=self.config.actor_lag,
            lockstep=self.config.lockstep,
            replayed=bool(job.replay_schedule),
            given_up=self._given_up,
        )

    def _given_up(self) -> tuple[int, int]:
        """Episodes that this rank's outside simulators dropped and restarted."""
        counts = given_up_counts(self.learning.env)
        return counts.get("dropped_episodes", 0), counts.get("restarted_episodes", 0)

    # -- starting and ending -------------------------------------------------

    def start(self, state: ActorLearnerState) -> ActorLearnerState:
        """Start the actors of a learner, fresh or from a checkpoint."""
        if self.job is None or not self.group.has_data:
            return state
        job, saved, number = self.job, self.restored, self.roles.number
        self.check_schedules(job, resumed=saved is not None)
        saved = saved or ActorSnapshot.nothing(self.acting)
        schedule = None
        if job.replay_schedule:
            schedule = ArrivalReplay(file_of(job.replay_schedule, number), saved.taken)
            if schedule.actors() > self.roles.actors:
                raise UserError(
                    f"run.replay_schedule: {job.replay_schedule} was recorded with {schedule.actors()} "
                    f"actors, but this job has {self.roles.actors}: start as many"
                )
        record = ArrivalRecorder(file_of(job.folder, number), saved.taken) if job.record_schedule else None
        given_up = functools.partial(count_given_up_elsewhere, self.learning.env)
        self.mailbox = Mailbox(
            self.acting,
            Link(self.roles, self.channel, self.control, job.watchdog),
            saved,
            MailboxRules(self.config.max_lag, self.config.actor_lag, given_up),
            ArrivalSchedule(record, schedule),
            add=self.ranks.add,
            seconds_before=self.seconds_before,
        )
        self.publish(state, int(state.iteration))
        return state

    def check_schedules(self, job: Job, resumed: bool) -> None:
        """Refuse to record or replay a schedule that would not determine the run."""
        del resumed  # learners continue while a schedule waits
        if not (job.record_schedule or job.replay_schedule):
            return
        if self.config.may_lose_unrolls:
            raise UserError(
                "run.record_schedule, run.replay_schedule: lost unrolls are not part of a schedule: set "
                "workflow.when_full=block"
            )
        if self.channel.gone is not None:
            raise UserError(
                "run.record_schedule, run.replay_schedule: unrolls of an actor must go to one learner only: "
                "workflow.selection=range, or workflow.help=false"
            )

    def close(self, finished: bool) -> None:
        """Release the actors; their last states are saved for the checkpoint."""
        if self._last is not None:
            return
        assert self.job is not None, "join comes first"
        self._last = self.snapshot()
        self._left_out = self.ranks.add(np.array([self._last.dropped, self._last.lost]))
        if self.mailbox is not None:
            self.mailbox.stop(finished)
        self.channel.close()
        self.job.ranks.barrier()  # actors have written their traces

    def snapshot(self) -> ActorSnapshot:
        """Actors' states and messages in flight, for a checkpoint."""
        if self._last is not None:
            return self._last
        return self.mailbox.snapshot() if self.mailbox else ActorSnapshot.nothing(self.acting)

    def store(self, directory: Path, keep: int) -> Store:
        return ActorLearnerStore(
            self.ranks, directory, keep, self.snapshot, self._resumed, inspects=self.job is None
        )

    def _resumed(self, actors: ActorSnapshot | None, seconds: float) -> None:
        self.restored, self.seconds_before = actors, seconds

    def stop_request(self) -> tuple[int, int]:
        return self.mailbox.signal if self.mailbox else (0, 0)

    def describe(self) -> str:
        return self.roles.describe()

    def summary_extras(self) -> dict[str, Any]:
        dropped, lost = self._left_out
        return {
            "learners": self.roles.learners,
            "actors": self.roles.actors,
            "dropped_unrolls": int(dropped),  # too old to be used
            "lost_unrolls": int(lost),  # by the transport's rule on full
        }

    # -- the learner ---------------------------------------------------------

    def init(self, key: Array, hypers: PyTree) -> ActorLearnerState:
        init = jax.jit(lambda key, hypers: self.learning.init(key, hypers, self.group))
        state: ActorLearnerState = init(key, hypers)
        return state

    def compile(self, state: ActorLearnerState) -> None:
        """Programs for a state of these shapes."""
        learning, group, settings = self.learning, self.group, self.learning.settings
        one = learning.unroll_shape(state.learner, 1)
        rated: PyTree = jax.ShapeDtypeStruct(one.last.shape, jnp.float32) if settings.priorities else ()
        unrolls = [(one, rated)] * settings.batch if group.has_data else []
        iterate = functools.partial(learning.iterate, group=group)
        _, metrics = jax.eval_shape(lambda s, u: iterate(s, {}, u), state, unrolls)
        self._names = sorted(metrics)
        sums = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in self._names}
        self._programs = {
            "iterate": self._program(iterate, (0, 1), state, sums, unrolls),
            "params": self._program(lambda s: learning.agent.actor(s.learner), (), state),
            "mark": self._program(mark, (), state),
        }
        if group.collectives is not None and self.config.overlap:
            gradient = functools.partial(learning.gradient, group=group)
            _, _, numbers, statistics = jax.eval_shape(gradient, state, sums, unrolls)
            self._programs["gradient"] = self._program(gradient, (0, 1), state, sums, unrolls)
            apply = functools.partial(learning.apply, group=group)
            self._programs["apply"] = self._program(apply, (0,), state, numbers, statistics)
            self._overlapped = OverlappedLearning(
                self._programs["gradient"],
                self._programs["apply"],
                TravellingSum(self.ranks.comm, self._ordered),
            )
        if group.collectives is not None and not group.every_gradient:
            average = functools.partial(learning.average, group=group)
            self._programs["average"] = self._program(average, (0,), state)
        if learning.replay and learning.replay.drawable and group.has_data:
            share = learning.replay.drawable
            self._programs["drawable"] = self._program(lambda s: share(s.replay), (), state)
        if self.warmup_iterations:
            self._programs["fill"] = self._program(
                functools.partial(learning.fill, group=group), (0,), state, unrolls
            )

    def _program(
        self, function: Callable[..., PyTree], donate: tuple[int, ...], *shapes: PyTree
    ) -> Callable[..., PyTree]:
        """Compile ahead of time. Programs with MPI inside (mpi4jax) are called through jit's cache."""
        jitted = jax.jit(function, donate_argnums=donate)
        compiled = jitted.lower(*shapes).compile()
        return compiled if self.group.collectives is None else jitted

    def publish(self, state: ActorLearnerState, version: int) -> None:
        """Publish parameters for actors."""
        if self.mailbox is None:
            return
        packing = self.mailbox.acting.params
        buffer = packing.empty()
        packing.pack(self._programs["params"](state), buffer)
        self.mailbox.published(version, buffer)

    def _take(self, version: int) -> list[tuple[Transition, PyTree]]:
        if self.mailbox is None:  # another learner has the data
            assert self.job is not None
            self.job.watchdog.at("learning", version, often=True)
            return []
        messages = self.mailbox.take(self.learning.settings.batch, version)
        return [(message.trajectory, message.priority) for message in messages]

    def warmup(self, state: ActorLearnerState) -> ActorLearnerState:
        """Fill the replay. Versions are published meanwhile: actors follow the progress of the run."""
        version = int(state.iteration)
        for number in range(self.warmup_iterations):
            state = self._programs["fill"](state, self._take(version + number))
            self.publish(state, version + number + 1)
        if self.mailbox is not None:
            self.mailbox.staleness.reset()
        return state

    def step(self, state: ActorLearnerState, iterations: int) -> tuple[ActorLearnerState, Metrics]:
        """Learn from arriving unrolls; metrics are those of all learners."""
        sums = {name: jnp.float32(0) for name in self._names}
        version = int(state.iteration)
        learn = self._overlapped.learn if self._overlapped else self._programs["iterate"]
        for number in range(1, iterations + 1):
            state, sums = learn(state, sums, self._take(version + number - 1))
            # also at the end of a chunk: what is saved and evaluated is the same on all learners
            due = number == iterations or (version + number) % self.config.average_every == 0
            if due and "average" in self._programs:
                state = self._programs["average"](state)
            if (version + number) % self.config.publish_every == 0:
                self.publish(state, version + number)
        state = self._overlapped.arrived(state) if self._overlapped else state
        return state, self._metrics(state, sums, iterations)

    def _metrics(self, state: ActorLearnerState, sums: Metrics, iterations: int) -> Metrics:
        """Means over learners; collective."""
        mine = self.mailbox.staleness if self.mailbox else staleness.Staleness()
        idle = self.mailbox.backoff.seconds if self.mailbox else 0.0
        now = time.perf_counter()
        drawable = float(self._programs["drawable"](state)) if "drawable" in self._programs else 0.0
        shares = [(idle - self._clock[0]) / max(now - self._clock[1], 1e-9), drawable]
        self._clock = (idle, now)
        values = [float(sums[name]) / max(iterations, 1) for name in self._names]
        counts = self.channel.counts
        events = [counts[name] - self._counts.get(name, 0) for name in counts]
        self._counts = counts
        own = mine.sums()
        total = self.ranks.add(np.concatenate([[*values, *shares], own, events]))
        everyone = self.ranks.everyone(mine.largest, int(self._programs["mark"](state)))
        mine.reset()
        count = len(self._names)
        metrics: dict[str, Any] = dict(zip(self._names, total[:count] / self.ranks.size, strict=True))
        shared, rest = total[count : count + len(shares)], total[count + len(shares) :]
        metrics |= staleness.describe(rest[: own.size], int(everyone[:, 0].max()))
        metrics |= dict(zip(counts, rest[own.size :], strict=True))
        metrics["learner_idle"], drawable = shared / self.learning.settings.served
        if self.learning.replay and self.learning.replay.drawable:
            metrics["drawable"] = drawable
        compare_replicas(self.layout, everyone[:, 1])
        return metrics | {"updates": int(state.learner.step)}
