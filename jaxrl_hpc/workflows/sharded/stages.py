"""The stages of the sharded workflow's iteration, and the collectives between them.

    act ─add→ take in
        statistics
    K × ( offer ─gather→ fetch ─total→ deal out → M × ( gradient ─add→ apply ) → settle )
                masses         rows                             gradients

The unit of all arithmetic is the logical shard: an update is the mean over shards of the agent's gradient on
the shard's part of the batch; PPO forms minibatches and standardises within a shard; keys are folded with the
shard's number. So a layout cannot change the computation except, unless `deterministic`, its rounding.
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
from jaxrl_hpc.workflows import update as learning
from jaxrl_hpc.workflows.sharded.state import (
    IterationWork,
    ReplicatedState,
    Sample,
    ShardedSettings,
    ShardedState,
    ShardState,
    ShardWork,
    Stage,
    each,
    first_of,
)

StageResult = tuple[IterationWork, ShardWork, PyTree]  # what is sent comes last


class Stages(NamedTuple):
    """The chains of stages that drivers combine."""

    acting: list[Stage]
    drawing: list[Stage]  # from all shards as one memory: returns rows
    sampling: list[Stage]
    learning: list[Stage]
    settling: list[Stage]
    reporting: list[Stage]
    updates: int  # K
    has_minibatches: bool  # M is the agent's choice; else 1


def make_stages(settings: ShardedSettings, env: Env, agent: Agent, replay: Replay | None) -> Stages:
    together = replay.shared if replay and settings.sample_globally else None
    return Stages(
        acting=acting(settings, env, agent, replay),
        drawing=drawing(together) if together else [],
        sampling=sampling(settings, agent, replay, together),
        learning=gradients(settings, agent, replay, together),
        settling=[Stage(settling(replay, together))],
        reporting=[Stage(reporting(replay), "gather")],
        updates=settings.updates if replay else 1,
        has_minibatches=agent.minibatches is not None,
    )


def make_init(
    settings: ShardedSettings, env: Env, agent: Agent, replay: Replay | None
) -> Callable[[Array, PyTree, Array], ShardedState]:
    """(key, hypers, logical numbers of the shards [L]) -> the state of these shards at the beginning."""

    def init(key: Array, hypers: dict[str, dict[str, Array]], shards: Array) -> ShardedState:
        agent_key, rollout_key, run_key = jax.random.split(key, 3)
        learner = agent.init(agent_key, hypers["agent"])

        def start(shard: Array) -> RolloutState:
            ids = shard * settings.copies + jnp.arange(settings.copies, dtype=jnp.int32)
            return rollout.start(env, agent, rollout_key, ids)

        running = each(settings, shards, start, shards)
        memory: PyTree = ()
        if replay:
            example = rollout.example_transition(env, agent, agent.actor(learner), first_of(running))
            memory = jax.vmap(lambda _: replay.init(example, hypers["replay"]))(shards)
        ahead: PyTree = ()
        if settings.draw_ahead:  # filled at the end of the warm-up
            assert replay is not None and replay.shared is not None
            masses = jnp.zeros(settings.shards)
            rows = jax.eval_shape(replay.shared.offer, memory, shards, masses, run_key)
            ahead = jnp.zeros(rows.shape, rows.dtype)
        shared = ReplicatedState(learner, run_key, jnp.int32(0), jnp.int32(0), ahead)
        return ShardedState(shared, ShardState(shards, running, memory))

    return init


def acting(settings: ShardedSettings, env: Env, agent: Agent, replay: Replay | None) -> list[Stage]:
    def act(work: IterationWork, local: ShardWork, _: PyTree) -> StageResult:
        shared, own = work.shared, local.own
        env_steps = shared.env_steps + settings.steps_per_iteration
        progress = env_steps.astype(jnp.float32) / settings.total_env_steps
        actor, learner = agent.actor(shared.learner), shared.learner._replace(progress=progress)

        def one(state: RolloutState) -> tuple[PyTree, ...]:
            state, trajectory, ended = rollout.unroll(env, agent, actor, state, settings.unroll_length)
            statistics = agent.statistics(learner, trajectory) if agent.statistics else ()
            rated: PyTree = ()
            if settings.actor_priorities:
                rated = learning.initial_priorities(agent, actor, trajectory)
            return state, trajectory, ended, statistics, rated

        running, trajectory, ended, statistics, rated = each(settings, own.shard, one, own.rollout)
        shared = shared._replace(learner=learner, iteration=shared.iteration + 1, env_steps=env_steps)
        episodes = jax.tree.map(jnp.add, local.episodes, ended)
        local = ShardWork(own._replace(rollout=running), episodes, (trajectory, rated))
        return work._replace(shared=shared, update=jnp.int32(0)), local, statistics

    def take_in(work: IterationWork, local: ShardWork, statistics: PyTree) -> StageResult:
        if agent.update_statistics is not None:
            learner = agent.update_statistics(work.shared.learner, statistics)
            work = work._replace(shared=work.shared._replace(learner=learner))
        trajectory, rated = local.data
        if replay is None:
            return work, local._replace(data=trajectory), ()
        given = (rated, 0) if settings.actor_priorities else (None, None)
        memory = jax.vmap(replay.add, (0, 0, given[1]))(local.own.replay, trajectory, given[0])
        return work, local._replace(own=local.own._replace(replay=memory), data=()), ()

    return [Stage(act, "add" if agent.statistics else None), Stage(take_in)]


class Keys(NamedTuple):
    """Keys of one update, the same everywhere."""

    sample: Array
    minibatches: Array
    gradient: Array


def keys_of(work: IterationWork) -> Keys:
    key = jax.random.fold_in(jax.random.fold_in(work.shared.key, work.shared.iteration), work.update)
    return Keys(*jax.random.split(key, 3))


def drawing(together: SharedReplay) -> list[Stage]:
    """Masses of all shards, then the rows that they drew."""

    def offer(work: IterationWork, local: ShardWork, _: PyTree) -> StageResult:
        memory, mass = jax.vmap(together.mass)(local.own.replay)
        return work, local._replace(own=local.own._replace(replay=memory)), mass

    def fetch(work: IterationWork, local: ShardWork, masses: Array) -> StageResult:
        own, key = local.own, keys_of(work).sample
        return work, local, together.offer(own.replay, own.shard, masses, key)[None]  # of all shards here

    return [Stage(offer, "gather"), Stage(fetch, "total")]


def sampling(
    settings: ShardedSettings, agent: Agent, replay: Replay | None, together: SharedReplay | None
) -> list[Stage]:
    """Each shard's part of the drawn batch (or its own unroll), divided into M updates."""

    def deal(work: IterationWork, shard: Array, batch: Batch) -> Batch:
        if agent.minibatches is None:
            one: Batch = jax.tree.map(lambda x: x[None], batch)
            return one
        return agent.minibatches(
            work.shared.learner, batch, jax.random.fold_in(keys_of(work).minibatches, shard)
        )

    def plan_own(work: IterationWork, local: ShardWork, _: PyTree) -> StageResult:
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

    def deal_out(work: IterationWork, local: ShardWork, rows: Array) -> StageResult:
        own = local.own
        if settings.draw_ahead:  # nothing below depends on these rows: they are sent while it is computed
            rows, work = work.shared.ahead, work._replace(shared=work.shared._replace(ahead=rows))
        batch = together.assemble(first_of(own.replay), rows, work.shared.learner.progress)
        batches = each(
            settings, own.shard, lambda s: deal(work, s, part_of(batch, s, settings.shards)), own.shard
        )
        empty = jnp.zeros((own.shard.shape[0], 0))
        work = work._replace(index=batch.index, priority=jnp.zeros_like(batch.weight))
        return work, local._replace(data=Sample(batches, empty, empty)), ()

    return [*drawing(together), Stage(deal_out)]


def gradients(
    settings: ShardedSettings, agent: Agent, replay: Replay | None, together: SharedReplay | None
) -> list[Stage]:
    size = settings.shards

    def gradient(work: IterationWork, local: ShardWork, _: PyTree) -> StageResult:
        learner, sample = work.shared.learner, local.data
        key = jax.random.fold_in(keys_of(work).gradient, work.part)

        def one(shard: Array, batches: Batch) -> tuple[PyTree, Array]:
            part = work.part if agent.minibatches else 0
            batch = jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, part, keepdims=False), batches)
            grads, info = agent.gradient(learner, batch, jax.random.fold_in(key, shard))
            metrics = info.metrics
            if replay:  # the last of several is the one that was drawn; the others may be simulated
                metrics |= learning.replay_metrics(agent, jax.tree.map(lambda x: x[-1], batches))
            known: PyTree = ()
            if together:  # its priorities at the places of its draws, for all shards
                draws = shard + size * jnp.arange(agent.needs.batch_size, dtype=jnp.int32)
                known = jnp.zeros(size * agent.needs.batch_size, jnp.float32).at[draws].set(info.priority)
            return (grads, metrics, known, info.statistics), info.priority

        sent, priority = each(settings, local.own.shard, one, local.own.shard, sample.batches)
        if replay and not together:
            local = local._replace(data=sample._replace(priority=priority))
        return work, local, sent

    def apply(work: IterationWork, local: ShardWork, received: PyTree) -> StageResult:
        grads, metrics, priority, statistics = received
        grads, metrics = jax.tree.map(lambda x: x / size, (grads, metrics))
        learner = agent.apply(work.shared.learner, grads, statistics)
        metrics = metrics | {"grad_norm": gradient_norm(grads, learner.params)}
        sums = {name: work.sums.get(name, 0.0) + value for name, value in metrics.items()}
        work = work._replace(shared=work.shared._replace(learner=learner), sums=sums, done=work.done + 1)
        return work._replace(part=work.part + 1, priority=priority), local, ()

    return [Stage(gradient, "add"), Stage(apply)]


def settling(replay: Replay | None, together: SharedReplay | None) -> Callable[..., StageResult]:
    def settle(work: IterationWork, local: ShardWork, _: PyTree) -> StageResult:
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


def reporting(replay: Replay | None) -> Callable[..., StageResult]:
    def report(work: IterationWork, local: ShardWork, _: PyTree) -> StageResult:
        """Finished episodes, a fingerprint of the learner to detect diverged copies, and the drawable share
        of each replay."""
        mark = jnp.full(local.own.shard.shape, fingerprint(work.shared.learner))
        drawable: PyTree = ()
        if replay and replay.drawable:
            drawable = jax.vmap(replay.drawable)(local.own.replay)
        return work, local, (local.episodes, mark, drawable)

    return report
