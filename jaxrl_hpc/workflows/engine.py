"""What runs actors and learners, whatever connects them: programs, roles, the learner's iterations.

A process is first a stranger that can only look at shapes (as `evaluate` does), then `connect` makes it a
learner or an actor of its job. A learner's iteration takes unrolls from its mailbox, calls one program and
publishes the parameters; an actor is workflows/acting.py.
"""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.comm.channel import Sizes, Transport
from jaxrl_hpc.comm.collectives import Collectives
from jaxrl_hpc.comm.control import Control
from jaxrl_hpc.comm.layout import Layout
from jaxrl_hpc.comm.ranks import Ranks
from jaxrl_hpc.comm.roles import Roles, assign
from jaxrl_hpc.comm.watchdog import Watchdog
from jaxrl_hpc.envs.outside.host import outside_counts, told
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.io.trace import Trace
from jaxrl_hpc.types import Array, Metrics, PyTree
from jaxrl_hpc.workflows import ages
from jaxrl_hpc.workflows.acting import Actor
from jaxrl_hpc.workflows.apart import ApartConfig
from jaxrl_hpc.workflows.arrivals import Mailbox
from jaxrl_hpc.workflows.kept import Kept
from jaxrl_hpc.workflows.learner import Learning, State, Team, mark
from jaxrl_hpc.workflows.messages import Acting, make_acting
from jaxrl_hpc.workflows.schedules import Recorder, Replayed, file_of


class Engine:
    """The workflow's functions. `join` makes this process a member of a job; before that it can only look."""

    def __init__(self, config: ApartConfig, transport: Transport, learning: Learning, warmup: int) -> None:
        self.config, self.transport, self.learning, self.warmup_iterations = (
            config,
            transport,
            learning,
            warmup,
        )
        self.roles = Roles(None, 0, config.learners, 0, learning.settings.served)
        self.ranks = Ranks()  # of the learners
        self.team = self._team(Ranks())
        self.layout = Layout(config.learners, config.learners, 0, (jax.local_devices()[0],))
        self.mailbox: Mailbox | None = None
        self.acting: Acting
        self.channel: Any = None  # this rank's end
        self.control: Any = None
        self._watchdog: Watchdog
        self._clock = (0.0, time.perf_counter())  # seconds waited, and when that was
        self._counts: dict[str, int] = {}  # of the channel, up to the last metrics
        self._programs: dict[str, Any] = {}
        self._names: list[str] = []

    def _team(self, ranks: Ranks) -> Team:
        """Without the others a learner is what each of them is, for looking at shapes."""
        shared = self.config.learner_mode == "shared" and self.config.learners > 1
        if ranks.size == 1:
            return Team(1, 0, False, None)
        layout = Layout(ranks.size, ranks.size, ranks.rank, (jax.local_devices()[0],))
        return Team(ranks.size, ranks.rank, shared, Collectives(layout, ranks.programs, True))

    def assign(self, ranks: Ranks) -> Roles:
        """Who does what in this job; together with all ranks."""
        config = self.config
        shared = config.learner_mode == "shared"
        self.roles = assign(ranks.comm, ranks.size, ranks.rank, config.learners, config.actors, shared)
        if config.lockstep and self.roles.actors > 1:
            raise UserError(
                f"workflow.lockstep: one actor, but this job has {self.roles.actors}: mpirun -n 2"
            )
        apart = ranks.comm.Split(0 if self.roles.learns else 1, ranks.rank)
        self.ranks = Ranks(apart)
        if self.roles.learns:
            self.team = self._team(self.ranks)
            self.layout = self.layout._replace(rank=self.ranks.rank)
        return self.roles

    def connect(self, ranks: Ranks, hypers: PyTree) -> Roles:
        """Become a learner or an actor of the job; together with all ranks."""
        roles = self.assign(ranks)
        self._agree_on_acting(roles, hypers)
        sizes = Sizes(self.acting.message.nbytes, self.acting.params.nbytes, self.config.in_flight)
        self.control = Control(roles.comm)
        self.channel = (self.transport.learner if roles.learns else self.transport.actor)(roles, sizes)
        return roles

    def _agree_on_acting(self, roles: Roles, hypers: PyTree) -> None:
        """How unrolls are made, and that all ranks mean the same by one."""
        settings, learning = self.learning.settings, self.learning
        self.acting = make_acting(
            learning.env,
            learning.agent,
            hypers["agent"],
            copies=settings.copies,
            length=settings.length,
            priorities=settings.priorities,
        )
        self.acting.message.agree(roles.comm, "the layout of unrolls")

    def actor(self, watchdog: Watchdog, trace: Trace, replayed: bool) -> Actor:
        """For ranks that act."""
        config = self.config
        return Actor(
            self.acting,
            self.roles,
            self.channel,
            self.control,
            watchdog,
            trace,
            lag=config.actor_lag,
            lockstep=config.lockstep,
            replayed=replayed,
            given_up=self._given_up,
        )

    def _given_up(self) -> tuple[int, int]:
        """Episodes that this rank's outside simulators dropped and restarted."""
        counts = outside_counts(self.learning.env)
        return counts.get("dropped_episodes", 0), counts.get("restarted_episodes", 0)

    def open(
        self,
        state: State,
        kept: Kept | None,
        watchdog: Watchdog,
        run: Path,
        *,
        record: bool,
        replayed: str,
        seconds_before: float,
    ) -> None:
        """Start the actors of a learner: fresh, or where a checkpoint left them, seconds into the run."""
        self._watchdog = watchdog
        if not self.team.has_data:
            return
        if (record or replayed) and getattr(self.config, "when_full", "block") != "block":
            raise UserError(
                "run.record_schedule, run.replay_schedule: unrolls that were lost are in no schedule: set "
                "workflow.when_full=block"
            )
        if self.channel.gone is not None and (record or replayed):
            raise UserError(
                "run.record_schedule, run.replay_schedule: unrolls of an actor must go to one learner only: "
                "workflow.selection=range, or workflow.help=false"
            )
        kept = kept or Kept.nothing(self.acting)
        number = self.roles.number
        schedule = Replayed(file_of(replayed, number), kept.taken) if replayed else None
        if schedule and schedule.actors() > self.roles.actors:
            raise UserError(
                f"run.replay_schedule: {replayed} was recorded with {schedule.actors()} actors, "
                f"but this job has {self.roles.actors}: start as many"
            )
        self.mailbox = Mailbox(
            self.acting,
            self.roles,
            self.channel,
            self.control,
            watchdog,
            max_lag=self.config.max_lag,
            history=self.config.actor_lag,
            kept=kept,
            record=Recorder(file_of(run, number), kept.taken) if record else None,
            replayed=schedule,
            add=self.ranks.add,
            given_up=functools.partial(told, self.learning.env),
            seconds_before=seconds_before,
        )
        self.publish(state, int(state.iteration))

    def close(self, finished: bool) -> None:
        """Send the actors home."""
        if self.mailbox is not None:
            self.mailbox.stop(finished)
        self.channel.close()

    # -- the learner ---------------------------------------------------------

    def init(self, key: Array, hypers: PyTree) -> State:
        return self.learning.init(key, hypers, self.team)

    def compile(self, state: State) -> None:
        """Programs for a state of these shapes."""
        learning, team, settings = self.learning, self.team, self.learning.settings
        one = learning.unroll_shape(state.learner, 1)
        rated: PyTree = jax.ShapeDtypeStruct(one.last.shape, jnp.float32) if settings.priorities else ()
        unrolls = [(one, rated)] * settings.batch if team.has_data else []
        iterate = functools.partial(learning.iterate, team=team)
        _, metrics = jax.eval_shape(lambda s, u: iterate(s, {}, u), state, unrolls)
        self._names = sorted(metrics)
        sums = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in self._names}
        self._programs = {
            "iterate": self._program(iterate, (0, 1), state, sums, unrolls),
            "params": self._program(lambda s: learning.agent.actor(s.learner), (), state),
            "mark": self._program(mark, (), state),
        }
        if self.warmup_iterations:
            self._programs["fill"] = self._program(
                functools.partial(learning.fill, team=team), (0,), state, unrolls
            )

    def _program(self, function: Any, donate: tuple[int, ...], *shapes: PyTree) -> Any:
        """Compiled ahead. With messages inside (mpi4jax) it is called through jit, which finds it cached."""
        jitted = jax.jit(function, donate_argnums=donate)
        compiled = jitted.lower(*shapes).compile()
        return compiled if self.team.collectives is None else jitted

    def publish(self, state: State, version: int) -> None:
        """Parameters for actors."""
        if self.mailbox is None:
            return
        packing = self.mailbox.acting.params
        buffer = packing.empty()
        packing.pack(self._programs["params"](state), buffer)
        self.mailbox.published(version, buffer)

    def _take(self, version: int) -> list[tuple[Any, Any]]:
        if self.mailbox is None:  # another learner has the data
            self._watchdog.at("learning", version, often=True)
            return []
        messages = self.mailbox.take(self.learning.settings.batch, version)
        return [(message.trajectory, message.priority) for message in messages]

    def warmup(self, state: State) -> State:
        """Fill the replay; actors see how far the run is."""
        version = int(state.iteration)
        for number in range(self.warmup_iterations):
            state = self._programs["fill"](state, self._take(version + number))
            self.publish(state, version + number + 1)
        if self.mailbox is not None:
            self.mailbox.ages.reset()
        return state

    def step(self, state: State, iterations: int) -> tuple[State, Metrics]:
        """Iterations with whatever comes; metrics are those of all learners."""
        sums = {name: jnp.float32(0) for name in self._names}
        version = int(state.iteration)
        for number in range(1, iterations + 1):
            state, sums = self._programs["iterate"](state, sums, self._take(version + number - 1))
            if (version + number) % self.config.publish_every == 0:
                self.publish(state, version + number)
        return state, self._metrics(state, sums, iterations)

    def _metrics(self, state: State, sums: Metrics, iterations: int) -> Metrics:
        """Means over learners; all of them come here together."""
        mine = self.mailbox.ages if self.mailbox else ages.Ages()
        idle = self.mailbox.patience.seconds if self.mailbox else 0.0
        now = time.perf_counter()
        shares = [(idle - self._clock[0]) / max(now - self._clock[1], 1e-9)]
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
        metrics |= ages.describe(total[count + 1 : count + 1 + own.size], int(everyone[:, 0].max()))
        metrics |= dict(zip(counts, total[count + 1 + own.size :], strict=True))
        metrics["learner_idle"] = total[count] / self.learning.settings.served
        return metrics | {"updates": int(state.learner.step), "replicas": everyone[:, 1]}
