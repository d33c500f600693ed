"""The update shared by all workflows: sample, minibatches, gradient, reduce, apply, prioritise."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_hpc.ops.optimise import gradient_norm
from jaxrl_hpc.types import Agent, Array, Batch, LearnerState, Metrics, PyTree, Replay, Transition, UpdateInfo


def as_batch(trajectory: Transition) -> Batch:
    """An unroll [T, B] as a batch without replay."""
    return Batch(trajectory, jnp.ones((), jnp.float32), jnp.zeros((0,), jnp.int32))


class Reduce(NamedTuple):
    """Reductions over learners between gradient and apply. A single learner needs none."""

    mean: Callable[[PyTree], PyTree] = lambda tree: tree  # of gradients
    total: Callable[[PyTree], PyTree] = lambda tree: tree  # of statistics of a batch


ALONE = Reduce()


def average_floats(tree: PyTree, mean: Callable[[list[Array]], list[Array]]) -> PyTree:
    """The tree with its floating-point numbers replaced by their mean; counters stay as they are."""
    leaves, structure = jax.tree.flatten(tree)
    floats = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves]
    new = iter(mean([leaf for leaf, is_float in zip(leaves, floats, strict=True) if is_float]))
    found = [next(new) if is_float else leaf for leaf, is_float in zip(leaves, floats, strict=True)]
    return jax.tree.unflatten(structure, found)


def learn(
    agent: Agent, state: LearnerState, batch: Batch, key: Array, reduce: Reduce = ALONE
) -> tuple[LearnerState, Metrics, Array]:
    """All updates of one batch -> (state, mean metrics, priorities of the last)."""
    minibatch_key, grad_key = jax.random.split(key)

    def one(state: LearnerState, item: tuple[Batch, Array]) -> tuple[LearnerState, UpdateInfo]:
        grads, info = agent.gradient(state, *item)
        grads = reduce.mean(grads)
        metrics = info.metrics | {"grad_norm": gradient_norm(grads, state.params)}
        statistics = reduce.total(info.statistics) if jax.tree.leaves(info.statistics) else ()
        return agent.apply(state, grads, statistics), UpdateInfo(metrics, info.priority)

    if agent.minibatches is None:
        state, info = one(state, (batch, grad_key))
        return state, info.metrics, info.priority
    batches = agent.minibatches(state, batch, minibatch_key)
    num_batches = jax.tree.leaves(batches)[0].shape[0]
    state, infos = jax.lax.scan(one, state, (batches, jax.random.split(grad_key, num_batches)))
    metrics = {name: value.mean() for name, value in infos.metrics.items()}
    return state, metrics, jax.tree.map(lambda p: p[-1], infos.priority)


def learn_from_replay(
    agent: Agent,
    replay: Replay,
    state: LearnerState,
    memory: PyTree,
    key: Array,
    reduce: Reduce = ALONE,
) -> tuple[LearnerState, PyTree, Metrics]:
    """One sample, its update, and the priorities that follow from it."""
    sample_key, learn_key = jax.random.split(key)
    batch = replay.sample(memory, sample_key, state.progress)
    state, metrics, priority = learn(agent, state, batch, learn_key, reduce)
    metrics |= replay_metrics(agent, batch)
    return state, replay.prioritise(memory, batch.index, priority), metrics


def replay_metrics(agent: Agent, batch: Batch) -> Metrics:
    """The used share of a batch.

    updates_used: 0 where nothing could be drawn, so that all weights are zero; else 1.
    window_used: mean steps of windows up to the first end of an episode, or of an unroll without
      continuation.
    """
    used = {"updates_used": jnp.any(batch.weight > 0).astype(jnp.float32)}
    if agent.needs.length == 1:
        return used
    going = jnp.cumprod(1.0 - batch.data.last[:-1].astype(jnp.float32), axis=0)  # [n - 1, N]
    return used | {"window_used": 1.0 + going.sum(axis=0).mean()}


def initial_priorities(agent: Agent, actor_params: PyTree, trajectory: Transition) -> Array:
    """Priorities [T, B] of the windows that start in an unroll, computed by its actor (Ape-X).

    A window that reaches beyond the unroll is cut and bootstrapped at the unroll's end.
    """
    assert agent.priority is not None
    length, copies = trajectory.last.shape
    ended = trajectory._replace(last=trajectory.last.at[-1].set(True))
    steps = jnp.arange(agent.needs.length)[:, None] + jnp.arange(length)[None, :]  # [n, T]
    steps = jnp.minimum(steps, length - 1)
    windows = jax.tree.map(
        lambda x: x[steps].reshape(agent.needs.length, length * copies, *x.shape[2:]), ended
    )
    weight = jnp.ones(length * copies, jnp.float32)
    batch = Batch(windows, weight, jnp.arange(length * copies, dtype=jnp.int32))
    return agent.priority(actor_params, batch).reshape(length, copies)
