"""Data exchanged by workers of a parameter server, and data stored centrally.

deltas     stored: parameters. A worker learns alone, with its own optimiser and target network, and pushes
           the change of its parameters. Any rule can add changes, and shards of them.
gradients  stored: parameters, target and optimiser state. A worker pushes the mean of its gradients, and the
           central optimiser takes one step with it (A3C, Gorila). Steps are serialised: by the lock, or by a
           single server.

Workers keep their own running statistics; these are merged at the end of every chunk (merge_statistics.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxrl_hpc.comm.buffers import BufferLayout, aligned
from jaxrl_hpc.comm.params.exchange import Combine, add_numbers
from jaxrl_hpc.comm.rma.window import rounded
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.types import Agent, Array, LearnerState, PyTree


class CentralLearner(NamedTuple):
    """Stored centrally where the optimiser is at the server."""

    params: PyTree
    target: PyTree
    opt: PyTree
    step: Array


class ExchangeScheme(NamedTuple):
    """Functions of traced values unless stated otherwise. `central` is what is stored."""

    agent: Agent  # what a worker runs
    first: Callable[[LearnerState], PyTree]  # a fresh learner of the worker's agent -> central
    install: Callable[[LearnerState, PyTree], LearnerState]  # (worker's learner, central) -> learner
    change: Callable[[LearnerState, PyTree, int], Array]  # (learner, central it began with, updates) -> [P]
    packing: BufferLayout  # of central
    size: int  # P
    combine: Callable[[PyTree, Callable[[int], float]], Combine] | None = None
    # host function: (hypers, progress after so many exchanges) -> what makes new bytes of old ones;
    # None where nothing is stored centrally (gossip)


def flat(params: PyTree) -> Array:
    return ravel_pytree(params)[0]


def _unravel(shape: PyTree) -> Callable[[Array], PyTree]:
    zeros = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shape)
    return ravel_pytree(zeros)[1]


def _check(params: PyTree) -> int:
    leaves = jax.tree.leaves(params)
    if any(leaf.dtype != jnp.float32 for leaf in leaves):
        raise UserError("workflow parameter_server: parameters must be float32")
    return sum(int(np.prod(leaf.shape, dtype=np.int64)) for leaf in leaves)


def deltas(agent: Agent, learner: LearnerState) -> ExchangeScheme:
    """`learner` has shapes."""
    unravel, size = _unravel(learner.params), _check(learner.params)

    def install(learner: LearnerState, central: Array) -> LearnerState:
        return learner._replace(params=unravel(central))

    return ExchangeScheme(
        agent=agent,
        first=lambda learner: flat(learner.params),
        install=install,
        change=lambda learner, central, _: flat(learner.params) - central,
        packing=BufferLayout.of(jax.ShapeDtypeStruct((size,), jnp.float32)),
        size=size,
        combine=lambda hypers, progress: add_numbers,
    )


def gradients(agent: Agent, learner: LearnerState, grads: PyTree) -> ExchangeScheme:
    """`learner` and `grads` have shapes of the agent's own learner and of its gradients.

    Several workers' gradients are applied in turn, so the step that one was computed at is not the step
    that it is applied at. What depends on the former travels in the gradients (`Agent.gradient`).
    """
    assert agent.minibatches is None, "refused by config.check"
    unravel, size = _unravel(grads), _check(grads)

    def nothing() -> PyTree:
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), grads)

    def init(key: Array, hypers: dict[str, Array]) -> LearnerState:
        fresh = agent.init(key, hypers)
        return fresh._replace(opt=(fresh.opt, nothing()))

    def collect(state: LearnerState, grads: PyTree, statistics: PyTree = ()) -> LearnerState:
        """In place of an optimiser step: gradients are summed up at the same parameters."""
        if jax.tree.leaves(statistics):
            raise UserError(
                "workflow.optimiser=server: this agent keeps statistics of its batches, which no gradient "
                "carries; use workflow.optimiser=worker"
            )
        opt, total = state.opt
        return state._replace(opt=(opt, jax.tree.map(jnp.add, total, grads)))

    def install(learner: LearnerState, central: CentralLearner) -> LearnerState:
        return learner._replace(
            params=central.params, target=central.target, step=central.step, opt=(central.opt, nothing())
        )

    def combine(hypers: PyTree, progress: Callable[[int], float]) -> Combine:
        template = jax.jit(agent.init)(jax.random.key(0), hypers)

        @jax.jit
        def applied(
            template: LearnerState, central: CentralLearner, change: Array, progress: Array
        ) -> CentralLearner:
            learner = template._replace(**central._asdict(), progress=progress)
            learner = agent.apply(learner, unravel(change), ())
            return CentralLearner(learner.params, learner.target, learner.opt, learner.step)

        def make(stored: np.ndarray, change: np.ndarray, number: int) -> None:
            now = jnp.float32(progress(number))
            new = applied(template, packing.unpack(stored), change.view(np.float32)[:size], now)
            packing.pack(jax.device_get(new), stored)

        return make

    packing = BufferLayout.of(CentralLearner(learner.params, learner.target, learner.opt, learner.step))
    return ExchangeScheme(
        agent=agent._replace(init=init, apply=collect),
        first=lambda learner: CentralLearner(learner.params, learner.target, learner.opt[0], learner.step),
        install=install,
        change=lambda learner, _, updates: flat(learner.opt[1]) / updates,
        packing=packing,
        size=size,
        combine=combine,
    )


def bytes_of(scheme: ExchangeScheme, central: PyTree) -> np.ndarray:
    """Pack on the host."""
    buffer = scheme.packing.empty()
    buffer[:] = 0  # padding too: it is added up like numbers
    scheme.packing.pack(jax.device_get(central), buffer)
    return buffer


def central_of(scheme: ExchangeScheme, data: np.ndarray) -> PyTree:
    """Unpack as views; the bytes must not be written to any more."""
    return scheme.packing.unpack(data)


def change_bytes(scheme: ExchangeScheme) -> int:
    return rounded(4 * scheme.size)


def change_of(scheme: ExchangeScheme, vector: Array) -> np.ndarray:
    """A change [P] as bytes; waits for it."""
    buffer = aligned(change_bytes(scheme))
    buffer[4 * scheme.size :] = 0
    buffer.view(np.float32)[: scheme.size] = np.asarray(vector)
    return buffer
