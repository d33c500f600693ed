"""What travels between actors and learners, as trees with fixed layouts (comm/packing.py).

message     header, unroll [T, B], initial priorities [T, B] where actors rate their steps
parameters  what `agent.actor` gives
state       an actor's environment copies and how far it is: what a checkpoint keeps of it
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc import rollout
from jaxrl_hpc.comm.packing import Packing
from jaxrl_hpc.rollout import Episodes, RolloutState
from jaxrl_hpc.types import Agent, Array, Env, PyTree, Transition
from jaxrl_hpc.workflows import learning


class Header(NamedTuple):
    """Where an unroll comes from. NumPy scalars."""

    actor: Any  # int64 number among actors
    sequence: Any  # int64 number among the actor's unrolls, from 0 on
    version: Any  # int64 of the parameters that acted
    busy: Any  # float64 seconds that the actor worked for it
    idle: Any  # float64 seconds that it waited before


class Message(NamedTuple):
    header: Header
    ended: Episodes  # sums over episodes that ended in the unroll
    trajectory: Transition  # [T, B]
    priority: PyTree  # [T, B], () if the replay rates new steps itself


class ActorState(NamedTuple):
    """What continues an actor."""

    rollout: RolloutState
    sequence: Any  # int64 unrolls made


class Acting(NamedTuple):
    """An actor's programs, and the layouts that follow from them."""

    start: Any  # (key of the run) -> ActorState of actor `number`: (key, number [])
    unroll: Any  # (actor params, rollout state) -> (rollout state, ended, trajectory, priority)
    message: Packing
    params: Packing
    state: Packing


def make_acting(
    env: Env, agent: Agent, hypers: PyTree, *, copies: int, length: int, priorities: bool
) -> Acting:
    """Programs for actors with `copies` environment copies each; `hypers` are shapes."""

    def start(key: Array, number: Array) -> RolloutState:
        """Copies keyed by their logical ids: those of actor a are a B … (a + 1) B - 1."""
        rollout_key = jax.random.split(key, 3)[1]  # as in the fused workflow
        ids = number * copies + jnp.arange(copies, dtype=jnp.int32)
        return rollout.start(env, agent, rollout_key, ids)

    def unroll(params: PyTree, state: RolloutState):
        state, trajectory, ended = rollout.unroll(env, agent, params, state, length)
        rated: PyTree = learning.initial_priorities(agent, params, trajectory) if priorities else ()
        return state, ended, trajectory, rated

    key = jax.random.key(0)
    number = jax.ShapeDtypeStruct((), jnp.int32)
    learner = jax.eval_shape(agent.init, key, hypers)
    params = jax.eval_shape(agent.actor, learner)
    running = jax.eval_shape(start, key, number)
    _, ended, trajectory, rated = jax.eval_shape(unroll, params, running)
    blank = Header(*(np.int64(0),) * 3, *(np.float64(0),) * 2)
    return Acting(
        start=jax.jit(start),
        unroll=jax.jit(unroll, donate_argnums=1),
        message=Packing.of(Message(blank, ended, trajectory, rated)),
        params=Packing.of(params),
        state=Packing.of(ActorState(running, np.int64(0))),
    )
