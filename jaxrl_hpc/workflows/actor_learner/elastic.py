"""A learner whose actors come and go while it runs: `async` over sockets instead of MPI.

    learner:  jaxrl-hpc train CONFIG --run-dir RUN       actors, any number at any time:  jaxrl-hpc actor RUN

Messages, learning, staleness and metrics are those of `async`. An actor finds the learner through the run
directory (runs/address.py), continues a stream of unrolls, and may die at any moment: acknowledged unrolls
are learned from exactly once, all others are made again by another actor (comm/sockets/learner_end.py). The
learner is one essential process, which waits while there are no actors.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import signal
import time
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np

import jaxrl_hpc
from jaxrl_hpc.comm.roles import Roles
from jaxrl_hpc.comm.sockets.actor_end import LearnerPlace, SocketActor
from jaxrl_hpc.comm.sockets.learner_end import COUNTS, Admission, SocketLearner, Stream
from jaxrl_hpc.comm.sockets.wire import SocketSizes
from jaxrl_hpc.envs.external.host import count_given_up_elsewhere
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.metrics.trace import Trace
from jaxrl_hpc.runs import address
from jaxrl_hpc.schema import static
from jaxrl_hpc.types import Agent, Env, Job, Metrics, Replay, Role, Workflow
from jaxrl_hpc.workflows.actor_learner.arrival_log import ArrivalRecorder, file_of
from jaxrl_hpc.workflows.actor_learner.config import ActorLearnerConfig, make_learning
from jaxrl_hpc.workflows.actor_learner.elastic_actor import VolatileActor
from jaxrl_hpc.workflows.actor_learner.elastic_mailbox import ElasticMailbox, WaitEnded, WaitRules
from jaxrl_hpc.workflows.actor_learner.learner import ActorLearnerState
from jaxrl_hpc.workflows.actor_learner.mailbox import ArrivalSchedule, MailboxRules
from jaxrl_hpc.workflows.actor_learner.messages import ActorSnapshot, Link
from jaxrl_hpc.workflows.actor_learner.runtime import ActorLearner
from jaxrl_hpc.workflows.config import Resources

log = logging.getLogger(__name__)
EXIT_AGAIN = 75  # as after saving: start again with --resume


class Config(ActorLearnerConfig):
    """The elastic workflow's settings."""

    name: Literal["elastic"] = "elastic"
    uses_ranks: ClassVar[bool] = False

    learners: Literal[1] = static(1, "one process learns")
    actors: int = static(
        16,
        "largest number of actors at a time; an epsilon per copy is spread over the copies of all",
        changeable=True,
        ge=1,
        le=4096,
    )
    learner_mode: Literal["own"] = static("own", "there is one learner")
    average_every: Literal[1] = static(1, "there is one learner")
    overlap: Literal[False] = static(False, "there is one learner")
    actor_lag: Literal[0] = static(0, "an actor that joins has only the newest parameters")
    lockstep: Literal[False] = static(False, "any actor may leave")
    deadline_seconds: float = static(
        300.0,
        "time that the learner waits for an unroll before it saves and ends, and an actor for the learner; "
        "0: for ever",
        changeable=True,
        ge=0,
    )
    lost_seconds: float = static(
        20.0, "an actor whose host is silent for this long counts as lost", changeable=True, ge=0.5, le=3600
    )
    listen: str = static(
        "*",
        "where the learner waits for actors: * (all networks), an address, or an interface such as ib0",
        changeable=True,
        pattern=r"^(\*|[\w.:-]+)$",
    )
    port: int = static(0, "port of the learner; 0: any that is free", changeable=True, ge=0, le=65_535)

    @property
    def cuts_windows(self) -> bool:
        """Streams of several actors come in any order."""
        return True

    @property
    def has_schedules(self) -> bool:
        return True

    def resources(self) -> Resources:
        return Resources(
            total_copies=self.num_envs * self.actors,
            shares_cores=True,
            deadline_seconds=self.deadline_seconds,
            waiting="sleep" if self.waiting == "auto" else self.waiting,
        )


class Elastic(ActorLearner):
    """One learner, and actors that join and leave (`take_part`)."""

    config: Config
    mailbox: ElasticMailbox | None
    channel: SocketLearner

    # -- the learner ---------------------------------------------------------

    def join(self, job: Job) -> Role:
        if job.seeds > 1:
            raise UserError(
                f"run.seeds is {job.seeds}: it trains one seed; start a run per seed, with run.seed=…"
            )
        if job.replay_schedule:
            raise UserError(
                "run.replay_schedule: actors that come and go cannot repeat a recorded order; replay it "
                "with workflow.name=async"
            )
        self.job = job
        self.make_programs(job.hypers)
        return Role(True, self.ranks)

    def sizes(self) -> SocketSizes:
        acting = self.acting
        return SocketSizes(
            acting.message.nbytes, acting.params.nbytes, acting.state.nbytes, self.config.in_flight
        )

    def runs(self, config: bytes) -> dict[str, Any]:
        """Versions and settings that an actor and its learner must share; `config` is the run's file."""
        return {
            "version of jaxrl_hpc": jaxrl_hpc.__version__,
            "hash of config.yaml": hashlib.sha256(config).hexdigest()[:16],
            "layout of unrolls": self.acting.message.fingerprint,
            "layout of parameters": self.acting.params.fingerprint,
            "layout of states": self.acting.state.fingerprint,
        }

    def start(self, state: ActorLearnerState) -> ActorLearnerState:
        """Begin to admit actors."""
        if self.job is None:
            return state
        job, config, saved = self.job, self.config, self.restored or ActorSnapshot.nothing(self.acting)
        began = time.perf_counter() - self.seconds_before
        self._token = address.new_token()
        runs = self.runs((job.folder / "config.yaml").read_bytes())
        self.channel = SocketLearner(
            self.sizes(),
            Admission(self._token, runs, config.actors, config.lost_seconds),
            (config.listen, config.port),
            {int(a): self._stream(np.array(s)) for a, s in zip(saved.ids, saved.states, strict=True)},
            dict(zip(COUNTS, map(int, saved.counts), strict=False)),
            milliseconds=lambda: round(1000 * (time.perf_counter() - began)),
        )
        self._counts = self.channel.counts
        record = ArrivalRecorder(file_of(job.folder, 0), saved.taken) if job.record_schedule else None
        asked = job.stop
        self.mailbox = ElasticMailbox(
            self.acting,
            Link(self.roles, self.channel, self.channel, job.watchdog),
            saved,
            MailboxRules(config.max_lag, 0, functools.partial(count_given_up_elsewhere, self.learning.env)),
            ArrivalSchedule(record),
            add=self.ranks.add,
            seconds_before=self.seconds_before,
            wait=WaitRules(lambda: asked.number if asked else 0, config.deadline_seconds),
        )
        self.publish(state, int(state.iteration))
        address.write_own(job.folder, self.channel.port, self.channel.public_key.decode(), self._token)
        log.warning("the learner is ready for actors: jaxrl-hpc actor %s", job.folder)
        return state

    def _stream(self, state: np.ndarray) -> Stream:
        return Stream(int(self.acting.state.unpack(state).sequence), state)

    def warmup(self, state: ActorLearnerState) -> ActorLearnerState:
        try:
            return super().warmup(state)
        except WaitEnded as ended:
            log.warning("%s, before anything was learned: start again with --resume", ended)
            raise SystemExit(EXIT_AGAIN) from None

    def step(self, state: ActorLearnerState, iterations: int) -> tuple[ActorLearnerState, Metrics]:
        """Fewer iterations if it is broken off while it waits for unrolls."""
        sums = {name: jnp.float32(0) for name in self._names}
        self._made = 0
        for version in range(int(state.iteration), int(state.iteration) + iterations):
            try:
                unrolls = self._take(version)
            except WaitEnded as ended:
                log.warning("%s", ended)
                self._ended = True
                break
            state, sums = self._programs["iterate"](state, sums, unrolls)
            if (version + 1) % self.config.publish_every == 0:
                self.publish(state, version + 1)
            self._made += 1
        return state, self._metrics(state, sums, self._made) if self._made else {}

    _made = 0
    _ended = False

    def made(self, asked: int) -> int:
        return self._made

    def stop_request(self) -> tuple[int, int]:
        return (signal.SIGALRM, 0) if self._ended else (0, 0)

    def _metrics(self, state: ActorLearnerState, sums: Metrics, iterations: int) -> Metrics:
        there: Any = len(self.channel.members)
        return super()._metrics(state, sums, iterations) | {"actors": there}

    def close(self, finished: bool) -> None:
        """Release the actors."""
        if self._last is not None or self.job is None:
            return
        assert self.mailbox is not None
        self.mailbox.stop(finished)
        self._last = self.snapshot()
        self._left_out = np.array([self._last.dropped, self._last.lost])
        address.remove(self.job.folder, self._token)
        self.channel.close()

    def describe(self) -> str:
        return "one learner"

    def summary_extras(self) -> dict[str, Any]:
        """acknowledged = learned + dropped + pending; joined = left + lost."""
        assert self._last is not None
        counts, last = self.channel.counts, self._last
        return counts | {
            "learned_unrolls": last.taken - last.dropped,
            "dropped_unrolls": last.dropped,  # too old to be used
            "pending_unrolls": len(last.pending),
            "streams": len(last.ids),
        }

    # -- actors --------------------------------------------------------------

    took_part = False  # whether the last attempt came so far

    def take_part(
        self,
        job: Job,
        place: LearnerPlace,
        runs: dict[str, Any],
        deadline: float,
        say: Callable[[str], None],
    ) -> bool:
        """Act for the learner of a run until one of the two ends -> whether the run is finished.

        Args:
          job: with the run's folder, key, hypers, and requests to stop.
          place: of the learner.
          runs: what this process runs (`runs`).
          deadline: by which it must have answered (time.monotonic).
          say: gets lines of text.

        Raises LearnerGone if the connection cannot be made or ends.
        """
        stop = job.stop
        assert stop is not None
        channel = SocketActor(place, self.sizes(), runs, self.config.lost_seconds)
        try:
            self.took_part = False
            channel.join(deadline, lambda: bool(stop.number))
            self.took_part = True
            self._renew_simulators(channel)
            say(f"actor {channel.number} of {job.folder} ({place.who})")
            actor = VolatileActor(
                self.acting,
                Link(Roles(None, 1 + channel.number, 1, 0, 1), channel, channel, job.watchdog),
                Trace(0, False),
                lag=0,
                lockstep=False,
                replayed=False,
                given_up=self._given_up,
            )
            actor.deadline_seconds = self.config.deadline_seconds
            actor.begin(job.key)
            try:
                return actor.serve(stop)
            finally:
                say(f"actor {channel.number}: {channel.summary()}")
        finally:
            channel.close()

    def _renew_simulators(self, channel: SocketActor) -> None:
        """New simulators for every membership, with seeds that no other actor has."""
        if not self.learning.env.external:
            return
        simulators = self.learning.env.host.simulators
        simulators.forget()
        if self._seed is None:
            self._seed = int(simulators.seed)
        mixed = np.random.SeedSequence([self._seed, 1 + channel.number, channel.begun])
        simulators.seed = int(mixed.generate_state(1)[0] >> 1)

    _seed: int | None = None  # of the run


def make(config: Config, env: Env, agent: Agent, replay: Replay | None, total_env_steps: int) -> Workflow:
    return Elastic(config, None, *make_learning(config, env, agent, replay, total_env_steps))
