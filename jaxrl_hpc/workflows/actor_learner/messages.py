"""Messages between actors and learners, as trees with fixed layouts (comm/buffers.py).

message     header, unroll [T, B], initial priorities [T, B] if actors compute them
parameters  the result of `agent.actor`
state       an actor's environment copies and counters, as saved in a checkpoint
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc import rollout
from jaxrl_hpc.comm.buffers import BufferLayout
from jaxrl_hpc.comm.roles import Roles
from jaxrl_hpc.comm.transport import ControlSide
from jaxrl_hpc.comm.watchdog import Watchdog
from jaxrl_hpc.rollout import Episodes, RolloutState
from jaxrl_hpc.types import Agent, Array, Env, PyTree, Transition
from jaxrl_hpc.workflows import update


class Header(NamedTuple):
    """Origin of an unroll, as NumPy scalars."""

    actor: np.int64  # number among actors
    sequence: np.int64  # number among the actor's unrolls, from 0 on
    version: np.int64  # of the parameters that acted
    busy: np.float64  # seconds that the actor worked for it
    idle: np.float64  # seconds that it waited before


class UnrollMessage(NamedTuple):
    header: Header
    ended: Episodes  # sums over episodes that ended in the unroll
    trajectory: Transition  # [T, B]
    priority: PyTree  # [T, B], () if the replay sets initial priorities itself


class Link(NamedTuple):
    """The connections of one rank to its job."""

    roles: Roles
    channel: Any  # its end of the transport: ActorSide or LearnerSide (comm/transport.py)
    control: ControlSide
    watchdog: Watchdog


class ActorState(NamedTuple):
    """State of an actor between two unrolls."""

    rollout: RolloutState
    sequence: Any  # unrolls made: int, int64 where packed


class ActorPrograms(NamedTuple):
    """An actor's programs, and the layouts that follow from them."""

    start: Callable[[Array, Array | np.int32], RolloutState]  # (key of the run, number []) -> its copies
    unroll: Callable[[PyTree, RolloutState], tuple[RolloutState, Episodes, Transition, PyTree]]
    # (actor params, state) -> (state, ended, trajectory, priority)
    message: BufferLayout
    params: BufferLayout
    state: BufferLayout


def make_acting(
    env: Env, agent: Agent, hypers: PyTree, *, copies: int, length: int, priorities: bool
) -> ActorPrograms:
    """Programs for actors with `copies` environment copies each; `hypers` are shapes."""

    def start(key: Array, number: Array) -> RolloutState:
        """Copies keyed by their logical ids: those of actor a are a B … (a + 1) B - 1."""
        rollout_key = jax.random.split(key, 3)[1]  # as in the fused workflow
        ids = number * copies + jnp.arange(copies, dtype=jnp.int32)
        return rollout.start(env, agent, rollout_key, ids)

    def unroll(params: PyTree, state: RolloutState) -> tuple[RolloutState, Episodes, Transition, PyTree]:
        state, trajectory, ended = rollout.unroll(env, agent, params, state, length)
        rated: PyTree = update.initial_priorities(agent, params, trajectory) if priorities else ()
        return state, ended, trajectory, rated

    key = jax.random.key(0)
    number = jax.ShapeDtypeStruct((), jnp.int32)
    learner = jax.eval_shape(agent.init, key, hypers)
    params = jax.eval_shape(agent.actor, learner)
    running = jax.eval_shape(start, key, number)
    _, ended, trajectory, rated = jax.eval_shape(unroll, params, running)
    blank = Header(*(np.int64(0),) * 3, *(np.float64(0),) * 2)
    return ActorPrograms(
        start=jax.jit(start),
        unroll=jax.jit(unroll, donate_argnums=1),
        message=BufferLayout.of(UnrollMessage(blank, ended, trajectory, rated)),
        params=BufferLayout.of(params),
        state=BufferLayout.of(ActorState(running, np.int64(0))),
    )


class ActorSnapshot(NamedTuple):
    """Actor states and in-flight messages saved in a checkpoint, as NumPy arrays."""

    ids: np.ndarray  # [A] int64 actors
    states: np.ndarray  # [A, bytes] uint8 packed ActorState
    pending: np.ndarray  # [M, bytes] uint8 messages not yet learned from, in order
    versions: np.ndarray  # [H] int64
    params: np.ndarray  # [H, bytes] uint8 packed parameters of these versions
    taken: int  # entries of the schedule so far
    dropped: int  # unrolls too old to be used, so far
    lost: int  # by the transport, so far
    counts: np.ndarray = np.zeros(0, np.int64)  # of a transport whose actors come and go

    @classmethod
    def nothing(cls, acting: ActorPrograms) -> ActorSnapshot:
        def none(width: int) -> np.ndarray:
            return np.zeros((0, width), np.uint8)

        no = np.zeros(0, np.int64)
        state, message, params = (none(p.nbytes) for p in (acting.state, acting.message, acting.params))
        return cls(no, state, message, no, params, 0, 0, 0)
