"""The stages of the sharded workflow's iteration, and the collectives between them.

    act ─add→ absorb     │ K × ( offer ─gather→ fetch ─total→ plan │ M × ( gradient ─add→ apply ) │ settle )
        moments          │           masses           rows                        gradients

The unit of all arithmetic is the logical shard: an update is the mean over shards of the agent's gradient
on the shard's part of the batch; PPO deals out and standardises within a shard; keys are folded with the
shard's number. So a layout cannot change what is computed, only, unless `deterministic`, its rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxrl_hpc import rollout
from jaxrl_hpc.comm.collectives import fingerprint
from jaxrl_hpc.ops.optimise import gradient_norm
from jaxrl_hpc.replay.global_sampling import part_of
from jaxrl_hpc.rollout import RolloutState
from jaxrl_hpc.types import Agent, Array, Batch, Env, PyTree, Replay, SharedReplay
from jaxrl_hpc.workflows import learning
from jaxrl_hpc.workflows.shards import (
    Local,
    Own,
    Sample,
    Settings,
    Shared,
    Stage,
    State,
    Work,
    each,
    first_of,
)


class Stages(NamedTuple):
    """The chains that drivers put together."""

    acting: list[Stage]
    sampling: list[Stage]
    learning: list[Stage]
    settling: list[Stage]
    reporting: list[Stage]
    updates: int  # K
    planned: bool  # M is the agent's choice; else 1


def make_stages(settings: Settings, env: Env, agent: Agent, replay: Replay | None) -> Stages:
    together = replay.shared if replay and settings.sample_globally else None
    return Stages(
        acting=acting(settings, env, agent, replay),
        sampling=sampling(settings, agent, replay, together),
        learning=gradients(settings, agent, replay, together),
        settling=[Stage(settling(replay, together))],
        reporting=[Stage(report, "gather")],
        updates=settings.updates if replay else 1,
        planned=agent.plan is not None,
    )


def make_init(
    settings: Settings, env: Env, agent: Agent, replay: Replay | None
) -> Callable[[Array, PyTree, Array], State]:
    """(key, hypers, logical numbers of the shards [L]) -> the state of these shards at the beginning."""

    def init(key: Array, hypers: dict[str, dict[str, Array]], shards: Array) -> State:
        agent_key, rollout_key, run_key = jax.random.split(key, 3)
        learner = agent.init(agent_key, hypers["agent"])

        def start(shard: Array) -> RolloutState:
            ids = shard * settings.copies + jnp.arange(settings.copies, dtype=jnp.int32)
            return rollout.start(env, agent, rollout_key, ids)

        running = each(settings, shards, start, shards)
        memory: PyTree = ()
        if replay:
            actor = agent.actor(learner)
            one_step = jax.eval_shape(lambda: rollout.unroll(env, agent, actor, first_of(running), 1)[1])
            example = jax.tree.map(lambda x: jnp.zeros(x.shape[2:], x.dtype), one_step)
            memory = jax.vmap(lambda _: replay.init(example, hypers["replay"]))(shards)
        return State(Shared(learner, run_key, jnp.int32(0), jnp.int32(0)), Own(shards, running, memory))

    return init


def acting(settings: Settings, env: Env, agent: Agent, replay: Replay | None) -> list[Stage]:
    def act(work: Work, local: Local, _: PyTree):
        shared, own = work.shared, local.own
        env_steps = shared.env_steps + settings.steps_per_iteration
        progress = env_steps.astype(jnp.float32) / settings.total_env_steps
        actor, learner = agent.actor(shared.learner), shared.learner._replace(progress=progress)

        def one(state: RolloutState):
            state, trajectory, ended = rollout.unroll(env, agent, actor, state, settings.unroll_length)
            moments = agent.moments(learner, trajectory) if agent.moments else ()
            rated: PyTree = ()
            if settings.actor_priorities:
                rated = learning.initial_priorities(agent, actor, trajectory)
            return state, trajectory, ended, moments, rated

        running, trajectory, ended, moments, rated = each(settings, own.shard, one, own.rollout)
        shared = shared._replace(learner=learner, iteration=shared.iteration + 1, env_steps=env_steps)
        episodes = jax.tree.map(jnp.add, local.episodes, ended)
        local = Local(own._replace(rollout=running), episodes, (trajectory, rated))
        return work._replace(shared=shared, update=jnp.int32(0)), local, moments

    def absorb(work: Work, local: Local, moments: PyTree):
        if agent.observe is not None:
            learner = agent.observe(work.shared.learner, moments)
            work = work._replace(shared=work.shared._replace(learner=learner))
        trajectory, rated = local.data
        if replay is None:
            return work, local._replace(data=trajectory), ()
        given = (rated, 0) if settings.actor_priorities else (None, None)
        memory = jax.vmap(replay.add, (0, 0, given[1]))(local.own.replay, trajectory, given[0])
        return work, local._replace(own=local.own._replace(replay=memory), data=()), ()

    return [Stage(act, "add" if agent.moments else None), Stage(absorb)]


class Keys(NamedTuple):
    """Of one update; the same everywhere."""

    sample: Array
    plan: Array
    gradient: Array


def keys_of(work: Work) -> Keys:
    key = jax.random.fold_in(jax.random.fold_in(work.shared.key, work.shared.iteration), work.update)
    return Keys(*jax.random.split(key, 3))


def sampling(
    settings: Settings, agent: Agent, replay: Replay | None, together: SharedReplay | None
) -> list[Stage]:
    """Everyone's part of what was drawn (or its own unroll), dealt out to M updates."""

    def deal(work: Work, shard: Array, batch: Batch) -> Batch:
        if agent.plan is None:
            return jax.tree.map(lambda x: x[None], batch)
        return agent.plan(work.shared.learner, batch, jax.random.fold_in(keys_of(work).plan, shard))

    def plan_own(work: Work, local: Local, _: PyTree):
        own = local.own
        if replay:
            keys = jax.vmap(jax.random.fold_in, (None, 0))(keys_of(work).sample, own.shard)
            progress = work.shared.learner.progress
            batch = jax.vmap(replay.sample, (0, 0, None))(own.replay, keys, progress)
            priority = jnp.zeros(batch.weight.shape, jnp.float32)
        else:
            batch = jax.vmap(learning.as_batch)(local.data)
            priority = jnp.zeros((own.shard.shape[0], 0))
        batches = each(settings, own.shard, lambda s, b: deal(work, s, b), own.shard, batch)
        return work, local._replace(data=Sample(batches, batch.index, priority)), ()

    if together is None:
        return [Stage(plan_own)]

    def offer(work: Work, local: Local, _: PyTree):
        memory, mass = jax.vmap(together.mass)(local.own.replay)
        return work, local._replace(own=local.own._replace(replay=memory)), mass

    def fetch(work: Work, local: Local, masses: Array):
        own, key = local.own, keys_of(work).sample
        return work, local, jax.vmap(together.offer, (0, 0, None, None))(own.replay, own.shard, masses, key)

    def plan(work: Work, local: Local, rows: Array):
        own = local.own
        batch = together.assemble(first_of(own.replay), rows, work.shared.learner.progress)
        batches = each(
            settings, own.shard, lambda s: deal(work, s, part_of(batch, s, settings.shards)), own.shard
        )
        empty = jnp.zeros((own.shard.shape[0], 0))
        work = work._replace(index=batch.index, priority=jnp.zeros_like(batch.weight))
        return work, local._replace(data=Sample(batches, empty, empty)), ()

    return [Stage(offer, "gather"), Stage(fetch, "total"), Stage(plan)]


def gradients(
    settings: Settings, agent: Agent, replay: Replay | None, together: SharedReplay | None
) -> list[Stage]:
    size = settings.shards

    def gradient(work: Work, local: Local, _: PyTree):
        learner, sample = work.shared.learner, local.data
        key = jax.random.fold_in(keys_of(work).gradient, work.part)

        def one(shard: Array, batches: Batch):
            part = work.part if agent.plan else 0
            batch = jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, part, keepdims=False), batches)
            grads, info = agent.gradient(learner, batch, jax.random.fold_in(key, shard))
            known: PyTree = ()
            if together:  # its priorities at the places of its draws, for all to know
                draws = shard + size * jnp.arange(agent.batch_size, dtype=jnp.int32)
                known = jnp.zeros(size * agent.batch_size, jnp.float32).at[draws].set(info.priority)
            return (grads, info.metrics, known), info.priority

        sent, priority = each(settings, local.own.shard, one, local.own.shard, sample.batches)
        if replay and not together:
            local = local._replace(data=sample._replace(priority=priority))
        return work, local, sent

    def apply(work: Work, local: Local, received: PyTree):
        grads, metrics, priority = received
        grads, metrics = jax.tree.map(lambda x: x / size, (grads, metrics))
        learner = agent.apply(work.shared.learner, grads)
        metrics = metrics | {"grad_norm": gradient_norm(grads)}
        sums = {name: work.sums.get(name, 0.0) + value for name, value in metrics.items()}
        work = work._replace(shared=work.shared._replace(learner=learner), sums=sums, done=work.done + 1)
        return work._replace(part=work.part + 1, priority=priority), local, ()

    return [Stage(gradient, "add"), Stage(apply)]


def settling(replay: Replay | None, together: SharedReplay | None) -> Callable:
    def settle(work: Work, local: Local, _: PyTree):
        """New priorities go to their owners; ready for the next update."""
        own, memory = local.own, local.own.replay
        if together:
            values = together.scale(first_of(memory), work.priority)
            memory = jax.vmap(together.prioritise, (0, 0, None, None))(memory, own.shard, work.index, values)
        elif replay:
            memory = jax.vmap(replay.prioritise)(memory, local.data.slots, local.data.priority)
        work = work._replace(update=work.update + 1, part=jnp.int32(0), index=(), priority=())
        return work, local._replace(own=own._replace(replay=memory), data=()), ()

    return settle


def report(work: Work, local: Local, _: PyTree):
    """What ended, and a fingerprint of the learner by which copies that drift apart are found."""
    mark = jnp.full(local.own.shard.shape, fingerprint(work.shared.learner))
    return work, local, (local.episodes, mark)
