"""A complete workflow in one file: acting with a running average of the parameters (Polyak & Juditsky 1992).

    iteration:  unroll [T, B] with the average -> add -> K x learn -> average += rate (parameters - average)

A traceable workflow is a state, which is the whole run, and pure functions of it. The runner compiles and
donates them, repeats them over seeds, saves the state and evaluates `learner`. This one is for agents with a
replay. In this folder:

    jaxrl-hpc train workflow.yaml
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_hpc import rollout
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.schema import static
from jaxrl_hpc.types import Agent, Array, Env, LearnerState, Metrics, PyTree, Replay, Workflow
from jaxrl_hpc.workflows import update as learning
from jaxrl_hpc.workflows.base import TraceableWorkflow, WorkflowConfig


class Config(WorkflowConfig):
    """What a config may set, beside num_envs, unroll_length and updates_per_iteration."""

    rate: float = static(0.2, "part of the way that the average goes per iteration", gt=0, le=1)


class AveragedState(NamedTuple):
    """The whole run: what a checkpoint holds."""

    learner: LearnerState
    average: PyTree  # parameters that act
    replay: PyTree
    rollout: rollout.RolloutState
    key: Array  # [] never consumed: folded with the iteration
    iteration: Array  # [] int32
    env_steps: Array  # [] int32


def make(config: Config, env: Env, agent: Agent, replay: Replay | None, total_env_steps: int) -> Workflow:
    if replay is None:
        raise UserError("workflow.name: this workflow is for agents with a replay, such as dqn or td3")
    steps = config.num_envs * config.unroll_length
    warmup_iterations = -(-replay.min_steps // steps)

    def init(key: Array, hypers: dict[str, dict[str, Array]]) -> AveragedState:
        agent_key, rollout_key, run_key = jax.random.split(key, 3)
        learner = agent.init(agent_key, hypers["agent"])
        copies = rollout.start(env, agent, rollout_key, jnp.arange(config.num_envs, dtype=jnp.int32))
        example = rollout.example_transition(env, agent, agent.actor(learner), copies)
        memory = replay.init(example, hypers["replay"])
        return AveragedState(learner, learner.params, memory, copies, run_key, jnp.int32(0), jnp.int32(0))

    def gather(state: AveragedState) -> tuple[AveragedState, rollout.Episodes]:
        actor = agent.actor(state.learner._replace(params=state.average))
        copies, trajectory, ended = rollout.unroll(env, agent, actor, state.rollout, config.unroll_length)
        env_steps = state.env_steps + steps
        learner = state.learner._replace(progress=env_steps.astype(jnp.float32) / total_env_steps)
        memory = replay.add(state.replay, trajectory, None)
        state = state._replace(learner=learner, replay=memory, rollout=copies, env_steps=env_steps)
        return state._replace(iteration=state.iteration + 1), ended

    def iterate(state: AveragedState) -> tuple[AveragedState, Metrics, rollout.Episodes]:
        state, ended = gather(state)

        def update(carry: tuple[LearnerState, PyTree], key: Array):
            learner, memory, metrics = learning.learn_from_replay(agent, replay, *carry, key)
            return (learner, memory), metrics

        keys = jax.random.split(jax.random.fold_in(state.key, state.iteration), config.updates_per_iteration)
        (learner, memory), metrics = jax.lax.scan(update, (state.learner, state.replay), keys)
        average = jax.tree.map(lambda a, p: a + config.rate * (p - a), state.average, learner.params)
        state = state._replace(learner=learner, replay=memory, average=average)
        return state, {name: value.mean() for name, value in metrics.items()}, ended

    def step(state: AveragedState, iterations: Array) -> tuple[AveragedState, Metrics]:
        """A chunk of the run; only sums leave the loop."""
        shapes = jax.eval_shape(lambda: iterate(state)[1])
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

        def body(_: Array, loop):
            state, sums, episodes = loop
            state, metrics, ended = iterate(state)
            return state, jax.tree.map(jnp.add, sums, metrics), jax.tree.map(jnp.add, episodes, ended)

        state, sums, ended = jax.lax.fori_loop(0, iterations, body, (state, zeros, rollout.Episodes.zero()))
        metrics = {name: total / jnp.maximum(iterations, 1) for name, total in sums.items()}
        mean = {"episode_return": ended.returns / ended.number, "episode_length": ended.length / ended.number}
        return state, metrics | mean | {"episodes": ended.number, "updates": state.learner.step}

    return TraceableWorkflow(
        init=init,
        fill=lambda state: jax.lax.fori_loop(0, warmup_iterations, lambda _, s: gather(s)[0], state),
        step=step,
        counters=lambda s: {"iteration": s.iteration, "env_steps": s.env_steps, "updates": s.learner.step},
        learner=lambda s: s.learner,
        steps_per_iteration=steps,
        warmup_steps=warmup_iterations * steps,
    )
