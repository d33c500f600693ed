"""What every workflow does with data: sample, plan, gradient, reduce, apply, prioritise."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_hpc.types import Agent, Array, Batch, LearnerState, Metrics, PyTree, Replay, Transition


def as_batch(trajectory: Transition) -> Batch:
    """An unroll [T, B] as a batch without replay."""
    return Batch(trajectory, jnp.ones((), jnp.float32), jnp.zeros((0,), jnp.int32))


def learn(
    agent: Agent,
    state: LearnerState,
    batch: Batch,
    key: Array,
    reduce: Callable[[PyTree], PyTree] = lambda grads: grads,
) -> tuple[LearnerState, Metrics, Array]:
    """All updates that one batch is good for -> (state, mean metrics, priorities of the last)."""
    plan_key, grad_key = jax.random.split(key)
    if agent.plan is None:
        grads, info = agent.gradient(state, batch, grad_key)
        return agent.apply(state, reduce(grads)), info.metrics, info.priority

    def one(state: LearnerState, item: tuple[Batch, Array]):
        part, part_key = item
        grads, info = agent.gradient(state, part, part_key)
        return agent.apply(state, reduce(grads)), info

    batches = agent.plan(state, batch, plan_key)
    num_batches = jax.tree.leaves(batches)[0].shape[0]
    state, infos = jax.lax.scan(one, state, (batches, jax.random.split(grad_key, num_batches)))
    metrics = {name: value.mean() for name, value in infos.metrics.items()}
    return state, metrics, jax.tree.map(lambda p: p[-1], infos.priority)


def learn_from_replay(
    agent: Agent, replay: Replay, state: LearnerState, memory: PyTree, key: Array
) -> tuple[LearnerState, PyTree, Metrics]:
    """One sample, its update, and the priorities that follow from it."""
    sample_key, learn_key = jax.random.split(key)
    batch = replay.sample(memory, sample_key, state.progress)
    state, metrics, priority = learn(agent, state, batch, learn_key)
    return state, replay.prioritise(memory, batch.index, priority), metrics
