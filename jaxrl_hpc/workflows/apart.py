"""Settings that all workflows share in which actors and learners are processes of their own."""

from __future__ import annotations

from typing import Literal

from jaxrl_hpc.comm.ranks import world
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.schema import Schema, static
from jaxrl_hpc.types import Agent, Replay


class ApartConfig(Schema):
    """Settings of every workflow in which actors and learners are processes of their own."""

    learners: int = static(1, "ranks that learn: the first ones", ge=1)
    actors: int = static(0, "ranks that act, checked against the job; 0: all that do not learn", ge=0)
    learner_mode: Literal["own", "shared"] = static(
        "own", "several learners: each has actors and a replay of its own, or the first shares batches out"
    )
    num_envs: int = static(8, "environment copies of each actor", ge=1)
    unroll_length: int = static(16, "steps of every copy per message", ge=1)
    updates_per_iteration: int = static(1, "replay samples learned from per unroll", ge=1)
    batch_trajectories: int = static(1, "unrolls per update, for agents that learn from them", ge=1)
    in_flight: int = static(1, "unrolls of an actor that may be under way before it waits", ge=1, le=1024)
    publish_every: int = static(1, "iterations between new parameters for actors", ge=1)
    max_lag: int | None = static(
        None, "unrolls made with parameters older than so many iterations are dropped", ge=0
    )
    actor_lag: int = static(
        0, "act with parameters at least this many versions behind the newest", ge=0, le=10_000
    )
    actor_priorities: bool = static(False, "actors rate what they add to the replay, instead of the maximum")
    lockstep: bool = static(False, "one actor, which waits for the parameters after each of its unrolls")
    deadline_seconds: float = static(
        300.0, "the job is ended when one of its ranks stands still for so long; 0: never", ge=0
    )

    @property
    def all_copies(self) -> int:
        """Environment copies of all actors: what exploration with an epsilon per copy is spread over."""
        return self.num_envs * (self.actors or max(1, world().size - self.learners))


def check(config: ApartConfig, agent: Agent, replay: Replay | None) -> None:
    """What does not fit together, one sentence each."""
    if config.actor_priorities and (replay is None or agent.priority is None):
        raise UserError(
            "workflow.actor_priorities: this agent's actors cannot rate their steps; set it to false"
        )
    if replay and config.batch_trajectories > 1:
        raise UserError(
            "workflow.batch_trajectories: an agent with a replay takes one unroll at a time; set it to 1"
        )
    if config.max_lag is not None:
        # how old a fresh unroll may be: parameters are published now and then, and actors may hold back
        behind = config.publish_every - 1
        oldest = behind + (config.actor_lag + behind if config.actor_lag else 0)
        if config.max_lag < oldest:
            raise UserError(
                f"workflow.max_lag: even fresh unrolls can be {oldest} iterations old with publish_every = "
                f"{config.publish_every} and actor_lag = {config.actor_lag}, so that a learner could "
                f"wait for ever; set it to {oldest} or more"
            )
    if config.lockstep:
        wanted = {"batch_trajectories": 1, "publish_every": 1, "max_lag": None}
        wanted |= {"learners": 1} if config.learner_mode == "own" else {}
        wrong = [name for name, value in wanted.items() if getattr(config, name) != value]
        if wrong or config.actors > 1:
            raise UserError(
                "workflow.lockstep: one actor and one learner in turns; leave "
                f"workflow.{(wrong or ['actors'])[0]} as it is by default"
            )
    if config.learner_mode == "shared" and config.learners > 1:
        size = agent.batch_size or config.num_envs * config.batch_trajectories
        if size % config.learners:
            what = "agent.batch_size" if agent.batch_size else "num_envs × batch_trajectories"
            raise UserError(
                f"{what} is {size}: it must be a multiple of workflow.learners = {config.learners}"
            )
