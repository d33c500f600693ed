"""Actors and learners connected by one-sided memory: every actor has a window, from which learners fetch.

    actor:  unroll → ring in its memory ←─ fetch ─ learner:  iterate → slot in its memory ←─ read ─ actors

No messages are sent: an actor puts unrolls into its ring and reads newer parameters from the learner's slot,
a learner takes unrolls from rings. With several learners `selection` determines whose rings a learner reads
(comm/rma/transport.py): `range`, those of its own actors, or `random`, any, where learners may collide.
Everything else is as in `async`.
"""

from __future__ import annotations

from typing import Literal

from jaxrl_hpc.comm.rma.transport import RmaOptions, one_sided
from jaxrl_hpc.schema import static
from jaxrl_hpc.types import Agent, Env, Replay, Workflow
from jaxrl_hpc.workflows.actor_learner.config import ActorLearnerConfig, make_learning
from jaxrl_hpc.workflows.actor_learner.runtime import ActorLearner


class OneSidedConfig(ActorLearnerConfig):
    """Settings of workflows with windows."""

    one_sided: Literal["auto", "required", "never"] = static(
        "auto",
        "windows: auto: if they pass a test at the start, else messages; required: else the job ends; never",
        changeable=True,
    )
    progress_thread: Literal["auto", "always", "never"] = static(
        "auto",
        "a thread per rank that lets others access its memory while it computes; auto: if needed",
        changeable=True,
    )


class Config(OneSidedConfig):
    """The rma workflow's settings: rings in actors' memory."""

    name: Literal["rma"] = "rma"
    selection: Literal["range", "random"] = static(
        "range", "several learners: range: each reads the rings of its own actors; random: those of any"
    )
    when_full: Literal["block", "reject", "drop_oldest"] = static(
        "block", "if an actor's ring is full: wait, discard the new unroll, or discard the oldest"
    )

    @property
    def may_lose_unrolls(self) -> bool:
        return self.when_full != "block"


def over_windows(
    config: OneSidedConfig,
    options: RmaOptions,
    env: Env,
    agent: Agent,
    replay: Replay | None,
    total_env_steps: int,
) -> Workflow:
    """The workflow; `options` are those that its config does not share with others."""
    options = options._replace(
        one_sided=config.one_sided, thread=config.progress_thread, deadline_seconds=config.deadline_seconds
    )
    learning, warmup = make_learning(config, env, agent, replay, total_env_steps)
    return ActorLearner(config, one_sided(options), learning, warmup)


def make(config: Config, env: Env, agent: Agent, replay: Replay | None, total_env_steps: int) -> Workflow:
    options = RmaOptions(place="actor", rule=config.when_full, selection=config.selection)
    return over_windows(config, options, env, agent, replay, total_env_steps)
