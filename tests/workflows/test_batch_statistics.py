"""Statistics of a batch reach `apply` as their sum over all shards, whoever computes them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.config import from_dict
from jaxrl_hpc.config.registry import find
from jaxrl_hpc.runtime.build import build, hypers_of
from jaxrl_hpc.types import Agent, Batch, LearnerState, UpdateInfo

COPIES, STEPS, ITERATIONS = 8, 4, 3


def counting(agent: Agent) -> Agent:
    """The agent with a count of the steps it learned from, and the sum of their rewards, in `aux`."""

    def init(key: jax.Array, hypers: dict[str, jax.Array]) -> LearnerState:
        return agent.init(key, hypers)._replace(aux=jnp.zeros(2))

    def gradient(state: LearnerState, batch: Batch, key: jax.Array) -> tuple[object, UpdateInfo]:
        grads, info = agent.gradient(state, batch, key)
        reward = batch.data.reward
        return grads, info._replace(statistics=jnp.array([reward.size, reward.sum()]))

    def apply(state: LearnerState, grads: object, statistics: jax.Array) -> LearnerState:
        return agent.apply(state, grads, ())._replace(aux=state.aux + statistics)

    return agent._replace(init=init, gradient=gradient, apply=apply)


@pytest.mark.parametrize("workflow", [{"name": "fused"}, {"name": "sharded", "shards": 4}])
def test_sums_over_shards_reach_apply(workflow) -> None:
    config = from_dict(
        {
            "agent": {"name": "a2c", "network": {"hidden": [8]}},
            "env": {"name": "CartPole-v1"},
            "workflow": workflow | {"num_envs": COPIES, "unroll_length": STEPS},
            "run": {"total_env_steps": 10_000},
        }
    )
    parts = build(config)
    agent = counting(parts.agent)
    flow = find("workflow", workflow["name"]).make(config.workflow, parts.env, agent, None, 10_000)
    hypers = jax.tree.map(jnp.float32, hypers_of(config))
    state, _ = flow.step(flow.init(jax.random.key(0), hypers), ITERATIONS)
    # CartPole gives a reward of one per step
    np.testing.assert_array_equal(flow.learner(state).aux, [ITERATIONS * COPIES * STEPS] * 2)
