"""Actors and learners as processes of their own, connected by messages that nobody waits for.

    actor a:   newest parameters → unroll [T, B] ── message ──→ learner:  queue → iterate → publish ─┐
        ↑───────────────────────── parameters with a version ←────────────────────────────────────────┘

One iteration of the learner takes `batch_trajectories` unrolls, or one unroll and K replay samples. A version
is the number of iterations; every unroll carries the version that made it. A3C and IMPALA are A2C in this
workflow, Ape-X is DQN with an epsilon per copy and priorities by the actors (configs/workflows/).

Transports differ in how messages travel (comm/channel.py); everything else is the same for all of them.
"""

from __future__ import annotations

from typing import Literal

from jaxrl_hpc.comm.channel import Transport
from jaxrl_hpc.comm.two_sided import TWO_SIDED
from jaxrl_hpc.types import Agent, Env, Replay, Workflow
from jaxrl_hpc.workflows.apart import ApartConfig, check
from jaxrl_hpc.workflows.engine import Engine
from jaxrl_hpc.workflows.learner import Learning, Settings


class Config(ApartConfig):
    """The async workflow's settings: two-sided messages."""

    name: Literal["async"] = "async"


def make(config: Config, env: Env, agent: Agent, replay: Replay | None, total_env_steps: int) -> Workflow:
    return make_apart(config, TWO_SIDED, env, agent, replay, total_env_steps)


def make_apart(
    config: ApartConfig,
    transport: Transport,
    env: Env,
    agent: Agent,
    replay: Replay | None,
    total_env_steps: int,
) -> Workflow:
    """The workflow of any transport."""
    check(config, agent, replay)
    shared = config.learner_mode == "shared"
    settings = Settings(
        copies=config.num_envs,
        length=config.unroll_length,
        updates=config.updates_per_iteration,
        batch=1 if replay else config.batch_trajectories,
        total_env_steps=total_env_steps,
        priorities=config.actor_priorities,
        continuous=config.lockstep,
        served=1 if shared else config.learners,
    )
    per_unroll = config.num_envs * config.unroll_length
    warmup = -(-replay.min_steps // per_unroll) if replay else 0
    engine = Engine(config, transport, Learning(settings, env, agent, replay), warmup)
    return Workflow(
        init=engine.init,
        warmup=engine.warmup if warmup else None,
        step=engine.step,
        counters=lambda s: {"iteration": s.iteration, "env_steps": s.env_steps, "updates": s.learner.step},
        learner=lambda s: s.learner,
        steps_per_iteration=settings.steps_per_iteration,
        warmup_steps=warmup * settings.steps_per_iteration,
        pure=False,
        programs=engine,
    )
