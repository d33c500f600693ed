"""Slow gradients, to emulate an accelerator that trains a large network.

A gradient sleeps (ops/pause.py) for its share of `seconds`, the time for a whole batch: learners that divide
a batch and minibatches take their share. Results do not change.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_hpc.ops import pause
from jaxrl_hpc.types import Agent, Array, Batch, LearnerState, PyTree, UpdateInfo


def slow_updates(agent: Agent, seconds: float, whole: int) -> Agent:
    """The agent with gradients that sleep; `whole` is the number of steps in a batch of all learners."""
    pause.require("run.update_seconds")

    def gradient(state: LearnerState, batch: Batch, key: Array) -> tuple[PyTree, UpdateInfo]:
        grads, info = agent.gradient(state, batch, key)
        leaves, structure = jax.tree.flatten(grads)
        place = min(range(len(leaves)), key=lambda i: leaves[i].size)
        first = leaves[place].reshape(-1)[0].astype(jnp.float32)
        waited = pause.sleep(jnp.float32(seconds * steps_in(batch) / whole), first, in_turn=True)
        leaves[place] = leaves[place] + waited.astype(leaves[place].dtype)
        return jax.tree.unflatten(structure, leaves), info

    return agent._replace(gradient=gradient)


def steps_in(batch: Batch) -> int:
    """Rewards, flags and advantages are a number per step, also in rows that an agent deals itself (PPO)."""
    return min(field.size for field in batch.data if isinstance(field, jax.Array))
