"""Acting and learning in one compiled program on one device.

    iteration:  unroll [T, B]  ->  add  ->  K x (sample, gradient, apply, prioritise)

The whole run state is donated, so replay and parameters change in place; only sums of scalars leave the loop.
Data collection before the first update is a separate program: a branch around the replay would copy it when
seeds are vmapped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_hpc import rollout
from jaxrl_hpc.rollout import Episodes, RolloutState
from jaxrl_hpc.schema import static
from jaxrl_hpc.types import (
    Agent,
    Array,
    Env,
    LearnerState,
    Loops,
    Metrics,
    PyTree,
    Replay,
    Transition,
    Workflow,
)
from jaxrl_hpc.workflows import update as learning
from jaxrl_hpc.workflows.base import TraceableWorkflow
from jaxrl_hpc.workflows.config import WorkflowConfig


class Config(WorkflowConfig):
    """The fused workflow's settings."""

    name: Literal["fused"] = "fused"
    actor_lag: int = static(
        0,
        "act with parameters this many updates old (this many unrolls for agents that learn from them)",
        ge=0,
        le=10_000,
    )


class FusedState(NamedTuple):
    """The whole run."""

    learner: LearnerState
    replay: PyTree  # () for agents that learn from trajectories
    rollout: RolloutState
    past: PyTree  # (ring of actor parameters [actor_lag + 1, …], entries written []), () without lag
    key: Array  # [] never consumed: folded with the iteration
    iteration: Array  # [] int32
    env_steps: Array  # [] int32


LearnerReplayPast = tuple[LearnerState, PyTree, PyTree]


class Stages(NamedTuple):
    """Parts of an iteration, from which workflows of one program are built."""

    init: Callable[[Array, dict[str, dict[str, Array]]], FusedState]
    begin: Callable[[FusedState], FusedState]  # count one more iteration
    take_in: Callable[[FusedState, PyTree, Transition], FusedState]
    # (state, parameters that acted, unroll): into running statistics and replay
    gather: Callable[[FusedState], tuple[FusedState, Transition, Episodes]]  # a counted unroll, taken in
    learn: Callable[[FusedState, Transition | None], tuple[FusedState, Metrics]]
    # all updates of an iteration; the unroll matters to agents that learn from it
    loops: Callable[[FusedState], Loops]
    steps_per_iteration: int


def _zeros_like_shape(shape: PyTree) -> PyTree:
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shape)


def make_stages(
    config: WorkflowConfig,
    env: Env,
    agent: Agent,
    replay: Replay | None,
    total_env_steps: int,
    actor_lag: int = 0,
) -> Stages:
    config.check_priorities(agent, replay)
    steps_per_iteration = config.num_envs * config.unroll_length

    def init(key: Array, hypers: dict[str, dict[str, Array]]) -> FusedState:
        agent_key, rollout_key, run_key = jax.random.split(key, 3)
        learner = agent.init(agent_key, hypers["agent"])
        copies = rollout.start(env, agent, rollout_key, jnp.arange(config.num_envs, dtype=jnp.int32))
        memory: PyTree = ()
        if replay:
            example = rollout.example_transition(env, agent, agent.actor(learner), copies)
            memory = replay.init(example, hypers["replay"])
        past: PyTree = ()
        if actor_lag:
            repeat = actor_lag + 1
            ring = jax.tree.map(lambda x: jnp.repeat(x[None], repeat, axis=0), agent.actor(learner))
            past = (ring, jnp.int32(1))
        return FusedState(learner, memory, copies, past, run_key, jnp.int32(0), jnp.int32(0))

    def acting_params(state: FusedState) -> PyTree:
        if not actor_lag:
            return agent.actor(state.learner)
        ring, written = state.past
        oldest = written % (actor_lag + 1)
        return jax.tree.map(lambda x: x[oldest], ring)

    def remember(past: PyTree, learner: LearnerState) -> PyTree:
        if not actor_lag:
            return past
        ring, written = past  # counted separately: one unroll may be used for several updates
        slot = written % (actor_lag + 1)
        return jax.tree.map(lambda old, x: old.at[slot].set(x), ring, agent.actor(learner)), written + 1

    def begin(state: FusedState) -> FusedState:
        env_steps = state.env_steps + steps_per_iteration
        learner = state.learner._replace(progress=env_steps.astype(jnp.float32) / total_env_steps)
        return state._replace(learner=learner, iteration=state.iteration + 1, env_steps=env_steps)

    def take_in(state: FusedState, actor_params: PyTree, trajectory: Transition) -> FusedState:
        learner = state.learner
        if agent.statistics is not None and agent.update_statistics is not None:
            learner = agent.update_statistics(learner, agent.statistics(learner, trajectory))
        priority = None
        if config.actor_priorities:
            priority = learning.initial_priorities(agent, actor_params, trajectory)
        memory = replay.add(state.replay, trajectory, priority) if replay else ()
        return state._replace(learner=learner, replay=memory)

    def gather(state: FusedState) -> tuple[FusedState, Transition, Episodes]:
        """Unroll, update running statistics and the replay."""
        actor_params = acting_params(state)
        copies, trajectory, ended = rollout.unroll(
            env, agent, actor_params, state.rollout, config.unroll_length
        )
        state = begin(state._replace(rollout=copies))
        return take_in(state, actor_params, trajectory), trajectory, ended

    def learn(state: FusedState, trajectory: Transition | None) -> tuple[FusedState, Metrics]:
        key = jax.random.fold_in(state.key, state.iteration)
        if replay is None:
            assert trajectory is not None
            learner, metrics, _ = learning.learn(agent, state.learner, learning.as_batch(trajectory), key)
            return state._replace(learner=learner, past=remember(state.past, learner)), metrics

        def update(carry: LearnerReplayPast, update_key: Array) -> tuple[LearnerReplayPast, Metrics]:
            learner, memory, past = carry
            learner, memory, metrics = learning.learn_from_replay(agent, replay, learner, memory, update_key)
            return (learner, memory, remember(past, learner)), metrics

        carry = (state.learner, state.replay, state.past)
        if config.updates_per_iteration == 1:
            carry, metrics = update(carry, key)
        else:
            keys = jax.random.split(key, config.updates_per_iteration)
            carry, stacked = jax.lax.scan(update, carry, keys)
            metrics = {name: value.mean() for name, value in stacked.items()}
        learner, memory, past = carry
        return state._replace(learner=learner, replay=memory, past=past), metrics

    def loops(state: FusedState) -> Loops:
        """Acting, replay and learning, each as the body of a loop that depends on its own result."""
        key, actor = jax.random.key(0), agent.actor(state.learner)

        def acting(_: Array, copies: PyTree) -> PyTree:
            return rollout.unroll(env, agent, actor, copies, config.unroll_length)[0]

        trajectory = jax.jit(lambda c: rollout.unroll(env, agent, actor, c, config.unroll_length)[1])(
            state.rollout
        )
        found: Loops = {"acting": (acting, state.rollout)}
        updates = config.updates_per_iteration if replay else 1
        batch = learning.as_batch(trajectory)
        if replay is not None:
            batch = jax.jit(replay.sample)(state.replay, key, state.learner.progress)

            def remembering(i: Array, carry: PyTree) -> PyTree:
                memory, total = carry
                memory = replay.add(memory, trajectory, None)
                for number in range(updates):
                    draw = jax.random.fold_in(jax.random.fold_in(key, i), number)
                    drawn = replay.sample(memory, draw, state.learner.progress)
                    total += sum(leaf.astype(jnp.float32).sum() for leaf in jax.tree.leaves(drawn))
                    memory = replay.prioritise(memory, drawn.index, drawn.weight)
                return memory, total

            found["replay"] = (remembering, (state.replay, jnp.float32(0)))

        def improving(i: Array, learner: PyTree) -> PyTree:
            for number in range(updates):
                draw = jax.random.fold_in(jax.random.fold_in(key, i), number)
                learner = learning.learn(agent, learner, batch, draw)[0]
            return learner

        found["learning"] = (improving, state.learner)
        return found

    return Stages(init, begin, take_in, gather, learn, loops, steps_per_iteration)


class ChunkSums(NamedTuple):
    """Sums over iterations."""

    metrics: Metrics
    episodes: Episodes


def repeat(
    iterate: Callable[[FusedState], tuple[FusedState, Metrics, Episodes]],
    state: FusedState,
    iterations: Array,
    sums: ChunkSums | None = None,
) -> tuple[FusedState, ChunkSums]:
    """Iterations one after the other, added to the sums of earlier ones."""
    once = jax.jit(iterate, inline=True)  # traced for its shapes, and not a second time for the loop
    if sums is None:
        sums = ChunkSums(_zeros_like_shape(jax.eval_shape(once, state)[1]), Episodes.zero())

    def body(_: Array, loop: tuple[FusedState, ChunkSums]) -> tuple[FusedState, ChunkSums]:
        state, sums = loop
        state, metrics, ended = once(state)
        return state, jax.tree.map(jnp.add, sums, ChunkSums(metrics, ended))

    result: tuple[FusedState, ChunkSums] = jax.lax.fori_loop(0, iterations, body, (state, sums))
    return result


def chunk_metrics(replay: Replay | None, state: FusedState, sums: ChunkSums, iterations: Array) -> Metrics:
    """Metrics of a chunk of iterations."""
    episodes = sums.episodes
    count = jnp.maximum(episodes.number, 1.0)
    metrics = {name: total / jnp.maximum(iterations, 1) for name, total in sums.metrics.items()}
    metrics |= {
        "updates": state.learner.step,
        "episodes": episodes.number,
        "episode_return": jnp.where(episodes.number > 0, episodes.returns / count, jnp.nan),
        "episode_length": jnp.where(episodes.number > 0, episodes.length / count, jnp.nan),
    }
    if replay and replay.drawable:
        metrics["drawable"] = replay.drawable(state.replay)
    return metrics


def counters(state: FusedState) -> dict[str, Array]:
    return {"iteration": state.iteration, "env_steps": state.env_steps, "updates": state.learner.step}


def make(config: Config, env: Env, agent: Agent, replay: Replay | None, total_env_steps: int) -> Workflow:
    stages = make_stages(config, env, agent, replay, total_env_steps, config.actor_lag)
    steps_per_iteration = stages.steps_per_iteration
    warmup_iterations = -(-replay.min_steps // steps_per_iteration) if replay else 0

    def warmup(state: FusedState) -> FusedState:
        state = jax.lax.fori_loop(0, warmup_iterations, lambda _, s: stages.gather(s)[0], state)
        return state

    def iterate(state: FusedState) -> tuple[FusedState, Metrics, Episodes]:
        state, trajectory, ended = stages.gather(state)
        state, metrics = stages.learn(state, trajectory)
        return state, metrics, ended

    def step(state: FusedState, iterations: Array) -> tuple[FusedState, Metrics]:
        state, sums = repeat(iterate, state, iterations)
        return state, chunk_metrics(replay, state, sums, iterations)

    return TraceableWorkflow(
        init=stages.init,
        fill=warmup,
        step=step,
        counters=counters,
        learner=lambda s: s.learner,
        steps_per_iteration=steps_per_iteration,
        warmup_steps=warmup_iterations * steps_per_iteration,
        loops=stages.loops,
    )
