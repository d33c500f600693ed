"""A rank's replica of the learner: the averaged part, and its state.

The numbers that are averaged are one vector [P]: parameters first; with `moments` also floating-point numbers
of target networks and of the optimiser. Counters stay the rank's own.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxrl_hpc.comm.buffers import BufferLayout
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.types import Agent, Array, LearnerState, PyTree
from jaxrl_hpc.workflows.parameter_server.exchange_schemes import ExchangeScheme
from jaxrl_hpc.workflows.parameter_server.worker import WorkerState


class Consensus(NamedTuple):
    """The same for all ranks at the end of a chunk."""

    learner: LearnerState  # the mean of all replicas
    iteration: Array  # [] int32
    updates: Array  # [] int32 of all ranks


class ReplicaState(NamedTuple):
    """One rank."""

    worker: WorkerState  # `central` is the replica after its last average
    published: Array  # [P] what neighbours read: the replica before that


class GossipState(NamedTuple):
    shared: Consensus
    own: ReplicaState


def replicas(agent: Agent, learner: LearnerState, moments: bool) -> tuple[ExchangeScheme, int]:
    """The exchanged vector, and how many of its numbers are parameters; `learner` has shapes."""

    def parts(learner: LearnerState) -> PyTree:
        return (learner.params, learner.target, learner.opt) if moments else (learner.params,)

    if any(leaf.dtype != jnp.float32 for leaf in jax.tree.leaves(learner.params)):
        raise UserError("workflow gossip: parameters must be float32")

    def averaged(tree: PyTree) -> list[Array]:
        return [leaf for leaf in jax.tree.leaves(tree) if leaf.dtype == jnp.float32]

    def vector(learner: LearnerState) -> Array:
        return jnp.concatenate([jnp.ravel(leaf) for leaf in averaged(parts(learner))])

    def install(learner: LearnerState, numbers: Array) -> LearnerState:
        leaves, structure = jax.tree.flatten(parts(learner))
        new = iter(ravel_pytree(averaged(leaves))[1](numbers))
        found = [next(new) if leaf.dtype == jnp.float32 else leaf for leaf in leaves]
        names = ("params", "target", "opt")[: len(parts(learner))]
        return learner._replace(**dict(zip(names, jax.tree.unflatten(structure, found), strict=True)))

    size = sum(leaf.size for leaf in averaged(parts(learner)))
    scheme = ExchangeScheme(
        agent=agent,
        first=vector,
        install=install,
        change=lambda learner, *_: vector(learner),
        packing=BufferLayout.of(jax.ShapeDtypeStruct((size,), jnp.float32)),
        size=size,
    )
    return scheme, sum(leaf.size for leaf in jax.tree.leaves(learner.params))
