"""Acting: the only place that builds a Transition.

Every environment copy has a logical id, and its random stream comes from that id alone, so that a copy sees
the same randomness however copies are distributed over devices and ranks. An episode that ends resets at
once; `next_obs` is the observation before that reset, and `discount` is zero only where the episode
terminated: agents bootstrap through time limits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_hpc.types import Agent, Array, Env, EnvStep, PyTree, Transition


class Episodes(NamedTuple):
    """Sums over episodes that ended."""

    number: Array  # [] float32
    returns: Array  # [] float32
    length: Array  # [] float32

    @classmethod
    def zero(cls) -> Episodes:
        return cls(jnp.float32(0), jnp.float32(0), jnp.float32(0))


class RolloutState(NamedTuple):
    """State of B environment copies between steps."""

    env: PyTree  # state of the copies
    obs: PyTree  # [B, …] to act on next
    carry: PyTree  # [B, …] the agent's own per-copy state
    key: Array  # [B] one stream per copy
    ids: Array  # [B] int32 logical ids
    returns: Array  # [B] float32 of the episode so far
    length: Array  # [B] float32


def start(env: Env, agent: Agent, key: Array, ids: Array) -> RolloutState:
    """Fresh copies with the given logical ids. `key` is consumed."""
    streams = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, ids)
    split = jax.vmap(jax.random.split)(streams)
    state, obs = env.reset(split[:, 0])
    zeros = jnp.zeros(ids.shape[0], jnp.float32)
    return RolloutState(state, obs, agent.carry(ids), split[:, 1], ids, zeros, zeros)


def build_transition(obs: PyTree, action: Array, step: EnvStep, extras: PyTree) -> Transition:
    """One step of B copies in the form that agents learn from."""
    return Transition(
        obs=obs,
        action=action,
        reward=step.reward,
        discount=1.0 - step.terminated.astype(jnp.float32),
        last=jnp.logical_or(step.terminated, step.truncated),
        next_obs=step.final_obs,
        extras=extras,
    )


def _select(last: Array, fresh: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda f, o: jnp.where(last.reshape(-1, *([1] * (o.ndim - 1))), f, o), fresh, old)


class Choice(NamedTuple):
    """An agent's actions in B copies, and the keys of this step."""

    action: Array  # [B, …]
    carry: PyTree  # [B, …] after acting
    extras: PyTree  # [B, …]
    key: Array  # [B] of the next step
    env_key: Array  # [B] of the environments in this step


def choose(
    agent: Agent, actor_params: PyTree, carry: PyTree, obs: PyTree, key: Array, greedy: bool
) -> Choice:
    """The first half of a step. Consumes key [B]."""
    split = jax.vmap(lambda k: jax.random.split(k, 3))(key)
    next_key, act_key, env_key = split[:, 0], split[:, 1], split[:, 2]
    action, carry, extras = agent.act(actor_params, carry, obs, act_key, greedy)
    return Choice(action, carry, extras, next_key, env_key)


def conclude(
    agent: Agent, actor_params: PyTree, ids: Array, obs: PyTree, choice: Choice, step: EnvStep
) -> tuple[PyTree, Transition]:
    """The second half, once the environments have stepped -> (carry to act with next, what happened)."""
    carry = choice.carry
    transition = build_transition(obs, choice.action, step, choice.extras)
    if agent.after_step is not None:
        carry, extras = agent.after_step(actor_params, carry, transition)
        transition = transition._replace(extras=extras)
    return _select(transition.last, agent.carry(ids), carry), transition


def act_and_step(
    env: Env, agent: Agent, actor_params: PyTree, state: RolloutState, greedy: bool
) -> tuple[RolloutState, Transition, EnvStep]:
    """One step of every copy."""
    choice = choose(agent, actor_params, state.carry, state.obs, state.key, greedy)
    env_state, step = env.step(choice.env_key, state.env, choice.action)
    carry, transition = conclude(agent, actor_params, state.ids, state.obs, choice, step)
    new = RolloutState(
        env_state,
        step.obs,
        carry,
        choice.key,
        state.ids,
        state.returns + step.reward,
        state.length + 1.0,
    )
    return new, transition, step


def count_ended(
    transition: Transition, step: EnvStep, returns: Array, length: Array
) -> tuple[Array, Episodes]:
    """Which episodes ended [B] float32, and sums over those that count; `returns` include the step."""
    done = transition.last.astype(jnp.float32)
    whole = done * (1.0 - step.info["dropped"]) if "dropped" in step.info else done
    return done, Episodes(whole.sum(), (whole * returns).sum(), (whole * length).sum())


def unroll(
    env: Env, agent: Agent, actor_params: PyTree, state: RolloutState, length: int
) -> tuple[RolloutState, Transition, Episodes]:
    """`length` steps of every copy -> transitions [T, B] and what ended on the way."""

    def one(state: RolloutState, _: None) -> tuple[RolloutState, tuple[Transition, Episodes]]:
        state, transition, step = act_and_step(env, agent, actor_params, state, greedy=False)
        done, ended = count_ended(transition, step, state.returns, state.length)
        state = state._replace(returns=state.returns * (1 - done), length=state.length * (1 - done))
        return state, (transition, ended)

    if length == 1:  # a scan of one step costs a loop for nothing
        state, (transition, ended) = one(state, None)
        return state, jax.tree.map(lambda x: x[None], transition), ended
    state, (transitions, ended) = jax.lax.scan(one, state, None, length)
    return state, transitions, Episodes(*(x.sum() for x in ended))


def example_transition(env: Env, agent: Agent, actor_params: PyTree, copies: RolloutState) -> Transition:
    """Zeros like one transition, without leading axes; nothing is computed, shapes are enough."""
    step = jax.eval_shape(
        lambda params, copies: unroll(env, agent, params, copies, 1)[1], actor_params, copies
    )
    example: Transition = jax.tree.map(lambda x: jnp.zeros(x.shape[2:], x.dtype), step)
    return example


class Evaluation(NamedTuple):
    """One row per episode."""

    returns: Array  # [E] float32
    length: Array  # [E] float32
    finished: Array  # [E] bool: ended within the step limit
    info: dict[str, Array]  # [E] float32 sums over the episode; "dropped": episodes given up before it


def _estimated(
    estimate: Callable[..., Array], agent: Agent, actor_params: PyTree, key: Array, number: int, greedy: bool
) -> Evaluation:
    """Estimated returns where no episodes can be played. Agents without memory only."""

    def act(obs: PyTree, keys: Array) -> Array:
        carry = agent.carry(jnp.arange(keys.shape[0], dtype=jnp.int32))
        return agent.act(actor_params, carry, obs, keys, greedy)[0]

    returns = estimate(act, key, number)
    return Evaluation(returns, jnp.zeros(number), jnp.ones(number, bool), {})


def evaluate(
    env: Env, agent: Agent, actor_params: PyTree, key: Array, num_episodes: int, greedy: bool = True
) -> Evaluation:
    """Whole episodes, one per copy, with keys of their own. `key` is consumed."""
    if env.host.estimate is not None:
        return _estimated(env.host.estimate, agent, actor_params, key, num_episodes, greedy)
    limit = env.spec.max_episode_steps
    state = start(env, agent, key, jnp.arange(num_episodes, dtype=jnp.int32))
    zeros = jnp.zeros(num_episodes, jnp.float32)
    alive = jnp.ones(num_episodes, bool)
    info = dict.fromkeys(env.spec.info_keys, zeros)

    def going(loop: PyTree) -> Array:
        step, _, _, _, alive, _ = loop
        return jnp.logical_and(step < limit, alive.any())

    def advance(loop: PyTree) -> PyTree:
        step, state, returns, length, alive, info = loop
        state, transition, outcome = act_and_step(env, agent, actor_params, state, greedy)
        counted = alive.astype(jnp.float32)
        info = {name: total + counted * outcome.info[name] for name, total in info.items()}
        returns, length = returns + counted * outcome.reward, length + counted
        if "dropped" in outcome.info:  # replaces a dropped episode
            again = jnp.logical_and(alive, outcome.info["dropped"] > 0)
            returns, length = jnp.where(again, 0.0, returns), jnp.where(again, 0.0, length)
            info = {n: total if n == "dropped" else jnp.where(again, 0.0, total) for n, total in info.items()}
            ended = jnp.logical_and(transition.last, jnp.logical_not(again))
        else:
            ended = transition.last
        alive = jnp.logical_and(alive, jnp.logical_not(ended))
        return step + 1, state, returns, length, alive, info

    loop = (jnp.int32(0), state, zeros, zeros, alive, info)
    _, _, returns, length, alive, info = jax.lax.while_loop(going, advance, loop)
    return Evaluation(returns, length, jnp.logical_not(alive), info)
