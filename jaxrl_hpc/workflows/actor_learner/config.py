"""Settings of actors and learners in separate processes, and checks of their combinations."""

from __future__ import annotations

from typing import ClassVar, Literal

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.schema import static
from jaxrl_hpc.types import Agent, Env, Replay
from jaxrl_hpc.workflows.actor_learner.learner import LearnerPrograms, LearnerSettings, check_windows
from jaxrl_hpc.workflows.config import DistributedConfig


class ActorLearnerConfig(DistributedConfig):
    """Settings of workflows with actors and learners in separate processes."""

    replay_unroll: ClassVar[int] = 16  # so that a message is worth its cost

    learners: int = static(1, "number of learners: the first ranks", ge=1)
    actors: int = static(
        0, "number of actors, checked against the job; 0: all ranks that do not learn", changeable=True, ge=0
    )
    learner_mode: Literal["own", "shared"] = static(
        "own",
        "several learners: own: each has its own actors and replay; shared: the first distributes batches",
    )
    num_envs: int = static(8, "environment copies of each actor", ge=1)
    unroll_length: int = static(0, "steps of every copy per message; 0: the agent's default", ge=0)
    updates_per_iteration: int = static(1, "replay samples learned from per iteration", ge=1)
    batch_trajectories: int = static(
        1, "unrolls per iteration: learned from together, or written to the replay together", ge=1
    )
    in_flight: int = static(1, "unrolls of an actor that may be in flight before it waits", ge=1, le=1024)
    publish_every: int = static(1, "iterations between new parameters for actors", ge=1)
    average_every: int = static(
        1,
        "several learners: 1, every gradient is averaged; H, parameters and the optimiser's moments every H "
        "iterations",
        ge=1,
    )
    overlap: bool = static(
        False,
        "several learners: reduce gradients while waiting for unrolls; actors lag by one more update",
    )
    max_lag: int | None = static(None, "unrolls with a larger lag, in learner iterations, are dropped", ge=0)
    actor_lag: int = static(
        0, "act with parameters at least this many versions behind the newest", ge=0, le=10_000
    )
    lockstep: bool = static(False, "a single actor, which waits for new parameters after each of its unrolls")

    @property
    def cuts_windows(self) -> bool:
        """Whether the next unroll may come from another actor, or one may be missing before it."""
        one_stream = self.actors == 1 and (self.learners == 1 or self.learner_mode == "shared")
        complete = self.max_lag is None and not self.may_lose_unrolls
        return not self.lockstep and not (one_stream and complete)

    @property
    def unrolls_per_add(self) -> int:
        return self.batch_trajectories

    @property
    def may_lose_unrolls(self) -> bool:
        """Whether the transport discards unrolls when it is full."""
        return False

    def acting_ranks(self, ranks: int) -> int:
        return self.actors or max(1, ranks - self.learners)


def check(config: ActorLearnerConfig, agent: Agent, replay: Replay | None) -> None:
    """Refuse settings that do not fit together."""
    config.check_priorities(agent, replay)
    instead = ", or workflow.actors=1 if one rank acts and none of its unrolls may be dropped"
    if not config.uses_ranks:  # actors of an elastic run come and go
        instead = ""
    check_windows(agent, replay, config.unroll_length, config.cuts_windows, instead)
    if config.max_lag is not None:
        # possible age of a fresh unroll: parameters are published periodically, and actors may lag
        behind = config.publish_every - 1
        oldest = behind + (config.actor_lag + behind if config.actor_lag else 0)
        if config.max_lag < oldest:
            raise UserError(
                f"workflow.max_lag: even fresh unrolls can be {oldest} iterations old with publish_every = "
                f"{config.publish_every} and actor_lag = {config.actor_lag}, so that a learner could "
                f"wait forever; set it to {oldest} or more"
            )
    if config.lockstep:
        wanted = {"batch_trajectories": 1, "publish_every": 1, "max_lag": None}
        wanted |= {"learners": 1} if config.learner_mode == "own" else {}
        wrong = [name for name, value in wanted.items() if getattr(config, name) != value]
        if wrong or config.actors > 1:
            raise UserError(
                "workflow.lockstep: one actor and one learner in turns; leave "
                f"workflow.{(wrong or ['actors'])[0]} at its default"
            )
    if config.average_every > 1 and config.learner_mode == "shared":
        raise UserError(
            "workflow.average_every: learners that share every batch synchronise at every update; set it "
            "to 1, or workflow.learner_mode=own"
        )
    if config.overlap:
        _check_overlap(config, agent, replay)
    if config.learner_mode == "shared" and config.learners > 1:
        size = agent.needs.batch_size or config.num_envs * config.batch_trajectories
        if size % config.learners:
            what = "agent.batch_size" if agent.needs.batch_size else "num_envs × batch_trajectories"
            raise UserError(
                f"{what} is {size}: it must be a multiple of workflow.learners = {config.learners}"
            )


def make_learning(
    config: ActorLearnerConfig, env: Env, agent: Agent, replay: Replay | None, total_env_steps: int
) -> tuple[LearnerPrograms, int]:
    """The learner's programs and the number of iterations that only fill the replay; checks the settings."""
    check(config, agent, replay)
    settings = LearnerSettings(
        copies=config.num_envs,
        length=config.unroll_length,
        updates=config.updates_per_iteration,
        batch=config.batch_trajectories,
        total_env_steps=total_env_steps,
        priorities=config.actor_priorities,
        continuous=not config.cuts_windows,
        served=1 if config.learner_mode == "shared" else config.learners,
    )
    per_learner = settings.steps_per_iteration // settings.served
    warmup = -(-replay.min_steps // per_learner) if replay else 0
    return LearnerPrograms(settings, env, agent, replay), warmup


def _check_overlap(config: ActorLearnerConfig, agent: Agent, replay: Replay | None) -> None:
    if config.learner_mode == "shared" or config.average_every > 1:
        raise UserError(
            "workflow.overlap: it needs the mean of every gradient; set workflow.learner_mode=own and "
            "workflow.average_every=1"
        )
    if agent.minibatches is not None or (replay is not None and config.updates_per_iteration > 1):
        raise UserError(
            "workflow.overlap: it needs one update per iteration, and there are several: set it to "
            "false, or workflow.updates_per_iteration=1"
        )
