"""Actors and learners in separate processes, connected by non-blocking messages.

    actor a:   newest parameters → unroll [T, B] ── message ──→ learner:  queue → iterate → publish ─┐
        ↑───────────────────────── parameters with a version ←────────────────────────────────────────┘

One iteration of the learner takes `batch_trajectories` unrolls, and K replay samples if there is a replay. A
version is the number of iterations; every unroll carries the version that made it. A3C and IMPALA are A2C in
this workflow, Ape-X is DQN with an epsilon per copy and priorities by the actors (configs/workflows/).

Transports differ in how messages travel (comm/transport.py); everything else is the same for all of them.
"""

from __future__ import annotations

from typing import Literal

from jaxrl_hpc.comm.two_sided import TWO_SIDED
from jaxrl_hpc.types import Agent, Env, Replay, Workflow
from jaxrl_hpc.workflows.actor_learner.config import ActorLearnerConfig, make_learning
from jaxrl_hpc.workflows.actor_learner.runtime import ActorLearner


class Config(ActorLearnerConfig):
    """The async workflow's settings: two-sided messages."""

    name: Literal["async"] = "async"


def make(config: Config, env: Env, agent: Agent, replay: Replay | None, total_env_steps: int) -> Workflow:
    return ActorLearner(config, TWO_SIDED, *make_learning(config, env, agent, replay, total_env_steps))
