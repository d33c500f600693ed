"""Building, training and looking into small on-policy runs."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_hpc import config, rollout
from jaxrl_hpc.config import registry
from jaxrl_hpc.runtime.build import Parts, build, hypers_of
from jaxrl_hpc.types import LearnerState, PyTree, Transition


def config_of(agent: dict[str, Any]) -> Any:
    """An agent's own config."""
    return registry.find("agent", agent["name"]).config.model_validate_json(json.dumps(agent))


def parts_of(
    agent: dict[str, Any],
    env: str,
    num_envs: int = 8,
    unroll_length: int = 8,
    total: int = 10**7,
    **workflow: Any,
) -> tuple[Parts, dict[str, dict[str, jax.Array]]]:
    flow = {"name": "fused", "num_envs": num_envs, "unroll_length": unroll_length, **workflow}
    chosen = config.from_dict(
        {"agent": agent, "env": {"name": env}, "workflow": flow, "run": {"total_env_steps": total}}
    )
    hypers = jax.tree.map(jnp.float32, hypers_of(chosen))
    return build(chosen), hypers


def train(
    parts: Parts, hypers: PyTree, iterations: int, seed: int = 0
) -> tuple[LearnerState, dict[str, float]]:
    @jax.jit
    def run(key: jax.Array):
        state = parts.workflow.init(key, hypers)
        state, metrics = parts.workflow.step(state, iterations)
        return state.learner, metrics

    learner, metrics = run(jax.random.key(seed))
    return learner, {name: float(value) for name, value in metrics.items()}


def unroll(parts: Parts, learner: LearnerState, length: int, num_envs: int, skip: int = 0) -> Transition:
    """Steps of fresh copies, the first `skip` of them left out."""

    @jax.jit
    def run(actor_params: PyTree) -> Transition:
        state = rollout.start(parts.env, parts.agent, jax.random.key(9), jnp.arange(num_envs))
        if skip:
            state, _, _ = rollout.unroll(parts.env, parts.agent, actor_params, state, skip)
        return rollout.unroll(parts.env, parts.agent, actor_params, state, length)[1]

    return run(parts.agent.actor(learner))
