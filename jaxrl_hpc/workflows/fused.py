"""Acting and learning in one compiled program on one device.

    iteration:  unroll [T, B]  ->  add  ->  K x (sample, gradient, apply, prioritise)

The whole run state goes in and out donated, so replay and parameters change in place; only sums of
scalars leave the loop. Data collection before the first update is a program of its own: a branch on
"may I learn yet" around the replay would copy it when seeds are vmapped.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_hpc import rollout
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.rollout import Episodes, RolloutState
from jaxrl_hpc.schema import Schema, static
from jaxrl_hpc.types import Agent, Array, Env, LearnerState, Metrics, PyTree, Replay, Transition, Workflow
from jaxrl_hpc.workflows import learning


class Config(Schema):
    """The fused workflow's settings."""

    name: Literal["fused"] = "fused"
    num_envs: int = static(8, "environment copies", ge=1)
    unroll_length: int = static(1, "steps of every copy per iteration", ge=1)
    updates_per_iteration: int = static(1, "replay samples learned from per iteration", ge=1)
    actor_lag: int = static(
        0,
        "act with parameters this many updates old (this many unrolls for agents that learn from them)",
        ge=0,
        le=10_000,
    )
    actor_priorities: bool = static(False, "actors rate what they add to the replay, instead of the maximum")


class State(NamedTuple):
    """The whole run."""

    learner: LearnerState
    replay: PyTree  # () for agents that learn from trajectories
    rollout: RolloutState
    past: PyTree  # (ring of actor parameters [actor_lag + 1, …], entries written []), () without lag
    key: Array  # [] never consumed: folded with the iteration
    iteration: Array  # [] int32
    env_steps: Array  # [] int32


def _zeros_like_shape(shape: PyTree) -> PyTree:
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shape)


def make(config: Config, env: Env, agent: Agent, replay: Replay | None, total_env_steps: int) -> Workflow:
    if config.actor_priorities and (replay is None or agent.priority is None):
        raise UserError(
            "workflow.actor_priorities: this agent's actors cannot rate their steps; set it to false"
        )
    steps_per_iteration = config.num_envs * config.unroll_length
    warmup_iterations = -(-replay.min_steps // steps_per_iteration) if replay else 0

    def init(key: Array, hypers: dict[str, dict[str, Array]]) -> State:
        agent_key, rollout_key, run_key = jax.random.split(key, 3)
        learner = agent.init(agent_key, hypers["agent"])
        copies = rollout.start(env, agent, rollout_key, jnp.arange(config.num_envs, dtype=jnp.int32))
        memory: PyTree = ()
        if replay:
            one_step = jax.eval_shape(lambda: rollout.unroll(env, agent, agent.actor(learner), copies, 1)[1])
            example = jax.tree.map(lambda x: jnp.zeros(x.shape[2:], x.dtype), one_step)
            memory = replay.init(example, hypers["replay"])
        past: PyTree = ()
        if config.actor_lag:
            repeat = config.actor_lag + 1
            ring = jax.tree.map(lambda x: jnp.repeat(x[None], repeat, axis=0), agent.actor(learner))
            past = (ring, jnp.int32(1))
        return State(learner, memory, copies, past, run_key, jnp.int32(0), jnp.int32(0))

    def acting_params(state: State) -> PyTree:
        if not config.actor_lag:
            return agent.actor(state.learner)
        ring, written = state.past
        oldest = written % (config.actor_lag + 1)
        return jax.tree.map(lambda x: x[oldest], ring)

    def remember(past: PyTree, learner: LearnerState) -> PyTree:
        if not config.actor_lag:
            return past
        ring, written = past  # a count of its own: one unroll may be good for several updates
        slot = written % (config.actor_lag + 1)
        return jax.tree.map(lambda old, x: old.at[slot].set(x), ring, agent.actor(learner)), written + 1

    def gather(state: State) -> tuple[State, Transition, Episodes]:
        """Unroll, update running statistics and the replay."""
        actor_params = acting_params(state)
        copies, trajectory, ended = rollout.unroll(
            env, agent, actor_params, state.rollout, config.unroll_length
        )
        env_steps = state.env_steps + steps_per_iteration
        learner = state.learner._replace(progress=env_steps.astype(jnp.float32) / total_env_steps)
        if agent.moments is not None and agent.observe is not None:
            learner = agent.observe(learner, agent.moments(learner, trajectory))
        priority = None
        if config.actor_priorities:
            priority = learning.initial_priorities(agent, actor_params, trajectory)
        memory = replay.add(state.replay, trajectory, priority) if replay else ()
        iteration = state.iteration + 1
        state = state._replace(
            learner=learner, replay=memory, rollout=copies, iteration=iteration, env_steps=env_steps
        )
        return state, trajectory, ended

    def learn(state: State, trajectory: Transition) -> tuple[State, Metrics]:
        key = jax.random.fold_in(state.key, state.iteration)
        if replay is None:
            learner, metrics, _ = learning.learn(agent, state.learner, learning.as_batch(trajectory), key)
            return state._replace(learner=learner, past=remember(state.past, learner)), metrics

        def update(carry: tuple[LearnerState, PyTree, PyTree], update_key: Array):
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

    def iterate(state: State) -> tuple[State, Metrics, Episodes]:
        state, trajectory, ended = gather(state)
        state, metrics = learn(state, trajectory)
        return state, metrics, ended

    def warmup(state: State) -> State:
        return jax.lax.fori_loop(0, warmup_iterations, lambda _, s: gather(s)[0], state)

    def step(state: State, iterations: Array) -> tuple[State, Metrics]:
        metrics_shape = jax.eval_shape(lambda: iterate(state)[1])

        def body(_: Array, loop):
            state, sums, episodes = loop
            state, metrics, ended = iterate(state)
            return state, jax.tree.map(jnp.add, sums, metrics), jax.tree.map(jnp.add, episodes, ended)

        start = (state, _zeros_like_shape(metrics_shape), Episodes.zero())
        state, sums, episodes = jax.lax.fori_loop(0, iterations, body, start)
        metrics = {name: total / jnp.maximum(iterations, 1) for name, total in sums.items()}
        count = jnp.maximum(episodes.number, 1.0)
        metrics |= {
            "updates": state.learner.step,
            "episodes": episodes.number,
            "episode_return": jnp.where(episodes.number > 0, episodes.returns / count, jnp.nan),
            "episode_length": jnp.where(episodes.number > 0, episodes.length / count, jnp.nan),
        }
        return state, metrics

    return Workflow(
        init=init,
        warmup=warmup if warmup_iterations else None,
        step=step,
        counters=lambda s: {"iteration": s.iteration, "env_steps": s.env_steps, "updates": s.learner.step},
        learner=lambda s: s.learner,
        steps_per_iteration=steps_per_iteration,
        warmup_steps=warmup_iterations * steps_per_iteration,
    )
