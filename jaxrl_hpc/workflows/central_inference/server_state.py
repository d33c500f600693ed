"""State of a central inference server, and the programs that change it.

    greet     a rank's copies in their initial state
    conclude  received steps become transitions in the rank's unroll
    choose    actions for the next observations
    finish    return a whole unroll

A rank has a slot: observation, recurrent carry and keys of its copies, and the unroll that is being filled.
ServerState are rows of arrays; `index` names the rows of a batch, padded with a number beyond the last one.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_hpc import rollout
from jaxrl_hpc.rollout import Choice, Episodes, RolloutState
from jaxrl_hpc.types import Agent, Array, EnvStep, PyTree, Transition
from jaxrl_hpc.workflows import update


class CopyState(NamedTuple):
    """State of one rank's copies [B], as it sends it when it starts."""

    obs: PyTree
    carry: PyTree
    key: Array  # key data, uint32
    ids: Array
    returns: Array
    length: Array


class ServerState(NamedTuple):
    """Leading axis [R] on every leaf."""

    known: CopyState  # [R, B, …]
    action: Array  # [R, B, …] that was answered last
    extras: PyTree  # [R, B, …] of it
    filled: Array  # [R] int32 steps of the unroll so far
    ended: Episodes  # [R]
    data: Transition  # [R, T, B, …]


def known_of(state: RolloutState) -> CopyState:
    key = jax.random.key_data(state.key)
    return CopyState(state.obs, state.carry, key, state.ids, state.returns, state.length)


def _rows(tree: PyTree, index: Array) -> PyTree:
    """Rows [n, B, …] as one batch [n B, …]."""
    taken = jax.tree.map(lambda x: x.at[index].get(mode="clip"), tree)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), taken)


def _put(tree: PyTree, index: Array, rows: PyTree) -> PyTree:
    """A batch [n B, …] back into its rows; padding is dropped."""
    count = index.shape[0]
    return jax.tree.map(
        lambda x, r: x.at[index].set(r.reshape(count, -1, *r.shape[1:]).astype(x.dtype), mode="drop"),
        tree,
        rows,
    )


class InferencePrograms(NamedTuple):
    """The functions, for unrolls of T steps."""

    agent: Agent
    length: int
    priorities: bool

    def empty(self, ranks: int, params: PyTree, known: PyTree) -> ServerState:
        """`params` and `known` are shapes."""

        def one(params: PyTree, known: CopyState) -> PyTree:
            key = jax.random.wrap_key_data(known.key)
            choice = rollout.choose(self.agent, params, known.carry, known.obs, key, False)
            step = EnvStep(known.obs, known.obs, known.returns, known.returns > 0, known.returns > 0, {})
            _, transition = rollout.conclude(self.agent, params, known.ids, known.obs, choice, step)
            return known, choice.action, choice.extras, transition

        known, action, extras, transition = jax.eval_shape(one, params, known)

        def zeros(tree: PyTree, *lead: int) -> PyTree:
            return jax.tree.map(lambda s: jnp.zeros((*lead, *s.shape), s.dtype), tree)

        return ServerState(
            zeros(known, ranks),
            zeros(action, ranks),
            zeros(extras, ranks),
            jnp.zeros(ranks, jnp.int32),
            Episodes(*(jnp.zeros(ranks, jnp.float32) for _ in range(3))),
            zeros(transition, ranks, self.length),
        )

    def greet(self, slots: ServerState, number: Array, known: CopyState) -> ServerState:
        row = jax.tree.map(lambda x, k: x.at[number].set(k), slots.known, known)
        ended = Episodes(*(x.at[number].set(0.0) for x in slots.ended))
        return slots._replace(known=row, filled=slots.filled.at[number].set(0), ended=ended)

    def conclude(self, params: PyTree, slots: ServerState, index: Array, steps: EnvStep) -> ServerState:
        """`steps` [n, B, …]."""
        known = CopyState(*_rows(slots.known, index))
        step = EnvStep(*jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), steps))
        action, extras = _rows((slots.action, slots.extras), index)
        choice = Choice(action, known.carry, extras, known.key, known.key)  # its keys are used up
        carry, transition = rollout.conclude(self.agent, params, known.ids, known.obs, choice, step)
        returns, length = known.returns + step.reward, known.length + 1.0
        count = index.shape[0]
        parts = jax.tree.map(
            lambda x: x.reshape(count, -1, *x.shape[1:]), (transition, step, returns, length)
        )
        _, ended = jax.vmap(rollout.count_ended)(*parts)
        going = 1.0 - transition.last.astype(jnp.float32)
        known = known._replace(obs=step.obs, carry=carry, returns=returns * going, length=length * going)
        place = slots.filled.at[index].get(mode="clip")
        data = jax.tree.map(lambda x, t: x.at[index, place].set(t, mode="drop"), slots.data, parts[0])
        sums = Episodes(*(x.at[index].add(e, mode="drop") for x, e in zip(slots.ended, ended, strict=True)))
        return slots._replace(
            known=_put(slots.known, index, known),
            filled=slots.filled.at[index].add(1, mode="drop"),
            ended=sums,
            data=data,
        )

    def choose(self, params: PyTree, slots: ServerState, index: Array) -> tuple[ServerState, Array]:
        """-> actions [n, B, …]."""
        known = CopyState(*_rows(slots.known, index))
        key = jax.random.wrap_key_data(known.key)
        choice = rollout.choose(self.agent, params, known.carry, known.obs, key, False)
        known = known._replace(carry=choice.carry, key=jax.random.key_data(choice.key))
        slots = slots._replace(
            known=_put(slots.known, index, known),
            action=_put(slots.action, index, choice.action),
            extras=_put(slots.extras, index, choice.extras),
        )
        return slots, choice.action.reshape(index.shape[0], -1, *choice.action.shape[1:])

    def finish(self, params: PyTree, slots: ServerState, number: Array) -> tuple[ServerState, PyTree]:
        """-> (episodes that ended, trajectory [T, B], priorities, carry [B] at its end)."""
        one = jax.tree.map(lambda x: x[number], (slots.ended, slots.data, slots.known.carry))
        ended, trajectory, carry = one
        rated: PyTree = ()
        if self.priorities:
            rated = update.initial_priorities(self.agent, params, trajectory)
        fresh = Episodes(*(x.at[number].set(0.0) for x in slots.ended))
        slots = slots._replace(filled=slots.filled.at[number].set(0), ended=fresh)
        return slots, (Episodes(*ended), trajectory, rated, carry)
