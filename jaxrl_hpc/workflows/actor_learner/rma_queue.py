"""Actors and learners connected by queues in the learners' memory: actors write, learners read locally.

    actor:  unroll ── write ──→ queue │ learner's memory │ slot ←── read ── actors
                                      └ iterate, publish ┘

A learner has a queue for each actor of its group, and polling them is cheap; an actor whose queue is full
waits. A bitmap marks active actors. A learner that finds its queues empty helps: it takes an unroll from a
full queue of another group, whose actor would have to wait (`help`). Everything else is as in `async`.
"""

from __future__ import annotations

from typing import Literal

from jaxrl_hpc.comm.rma.transport import RmaOptions
from jaxrl_hpc.schema import static
from jaxrl_hpc.types import Agent, Env, Replay, Workflow
from jaxrl_hpc.workflows.actor_learner.rma import OneSidedConfig, over_windows


class Config(OneSidedConfig):
    """The rma_queue workflow's settings."""

    name: Literal["rma_queue"] = "rma_queue"
    help: bool = static(
        True,
        "a learner without unrolls takes them from full queues of others; from any after its actors end",
    )


def make(config: Config, env: Env, agent: Agent, replay: Replay | None, total_env_steps: int) -> Workflow:
    options = RmaOptions(place="learner", help=config.help)
    return over_windows(config, options, env, agent, replay, total_env_steps)
