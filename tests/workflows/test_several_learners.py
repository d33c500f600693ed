"""Several learners that average now and then or with overlap: lanes of one program, collectives of JAX."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxrl_hpc import config as configs
from jaxrl_hpc import rollout
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runtime.build import build, hypers_of
from jaxrl_hpc.types import Agent
from jaxrl_hpc.workflows.actor_learner.learner import LearnerGroup, LearnerPrograms, LearnerSettings
from jaxrl_hpc.workflows.actor_learner.overlap import TravellingSum
from tests import small
from tests.mpi import launch

LEARNERS = 3


def over_lanes(kind: str, tree: Any) -> Any:
    assert kind == "add"
    return jax.tree.map(lambda x: lax.psum(x[0], "learners"), tree)


def plain_sgd(agent: Agent) -> Agent:
    def apply(state: Any, grads: Any, statistics: Any) -> Any:
        params = jax.tree.map(lambda p, g: p - 0.05 * g, state.params, grads)
        return state._replace(params=params, step=state.step + 1)

    return agent._replace(apply=apply)


def learned(sgd: bool, every: int, iterations: int, overlap: bool = False) -> Any:
    """Learners [L] after some iterations on unrolls of their own.

    `every` 0: every gradient is averaged; else parameters and moments after so many iterations.
    """
    config = configs.from_dict(
        {"agent": {"name": "a2c", "network": {"hidden": [8]}}, "env": {"name": "CartPole-v1"}}
    )
    parts = build(config)
    agent = plain_sgd(parts.agent) if sgd else parts.agent
    settings = LearnerSettings(4, 6, 1, 1, 10_000, False, False, LEARNERS)
    programs = LearnerPrograms(settings, parts.env, agent, None)
    hypers = jax.tree.map(jnp.float32, hypers_of(config))

    def one(number: jax.Array) -> Any:
        group = LearnerGroup(LEARNERS, number, False, over_lanes, every == 0)  # type: ignore[arg-type]
        state = programs.init(jax.random.key(1), hypers, group)
        ids = 4 * number + jnp.arange(4)
        copies = rollout.start(parts.env, agent, jax.random.key(2), ids)

        def iterate(_: Any, carry: Any) -> Any:
            state, copies = carry
            actor = agent.actor(state.learner)
            copies, trajectory, _ = rollout.unroll(parts.env, agent, actor, copies, 6)
            unrolls = [(trajectory, ())]
            if not overlap:
                return programs.iterate(state, {}, unrolls, group)[0], copies
            state, _, numbers, statistics = programs.gradient(state, {}, unrolls, group)
            return programs.apply(state, lax.psum(numbers, "learners"), statistics, group), copies

        def block(_: Any, carry: Any) -> Any:
            state, copies = lax.fori_loop(0, max(every, 1), iterate, carry)
            return (programs.average(state, group) if every else state), copies

        state, copies = lax.fori_loop(0, iterations // max(every, 1), block, (state, copies))
        return state.learner

    return jax.jit(jax.vmap(one, axis_name="learners"))(jnp.arange(LEARNERS))


@pytest.mark.full
def test_with_plain_sgd_the_mean_of_parameters_is_that_of_gradients() -> None:
    """If it is taken after every update."""
    gradients, parameters = (learned(sgd=True, every=every, iterations=3) for every in (0, 1))
    for one, other in zip(*(jax.tree.leaves(found.params) for found in (gradients, parameters)), strict=True):
        np.testing.assert_array_equal(one, np.broadcast_to(one[:1], one.shape))
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_with_adam_learners_and_moments_are_equal_after_an_average() -> None:
    learner = learned(sgd=False, every=2, iterations=4)
    assert int(learner.step[0]) == 4
    for leaf in jax.tree.leaves((learner.params, learner.opt)):
        np.testing.assert_array_equal(leaf, np.broadcast_to(leaf[:1], leaf.shape))


def test_gradients_that_travel_are_those_that_are_averaged_at_once() -> None:
    at_once, travelled = (learned(sgd=False, every=0, iterations=3, overlap=o) for o in (False, True))
    for one, other in zip(*map(jax.tree.leaves, (at_once, travelled)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ordered", [True, False])
@launch.needs_mpi
def test_a_sum_is_begun_and_finished(ordered: bool) -> None:
    from mpi4py import MPI

    total = TravellingSum(MPI.COMM_SELF, ordered)
    assert not total.under_way
    total.begin(jnp.arange(5.0), "beside")
    assert total.under_way
    numbers, beside = total.finish()
    np.testing.assert_array_equal(numbers, np.arange(5.0))
    assert beside == "beside" and not total.under_way


@pytest.mark.parametrize(
    "changes, job, ordered",
    [
        ({}, {}, False),
        ({}, {"record_schedule": True}, True),
        ({}, {"replay_schedule": "folder"}, True),
        ({"lockstep": True, "learner_mode": "shared"}, {}, True),
    ],
)
def test_gradients_are_added_in_order_where_a_run_repeats(
    changes: dict[str, Any], job: dict[str, Any], ordered: bool
) -> None:
    """Elsewhere MPI's own sum does, for which no learner gathers all gradients."""
    flow = build(small.config(workflow={"name": "async", "learners": 2, **changes})).workflow
    flow.job = SimpleNamespace(**{"record_schedule": False, "replay_schedule": None, **job})
    group = flow._group(SimpleNamespace(size=2, rank=0, programs=None))
    assert group.collectives.deterministic == ordered


@pytest.mark.parametrize(
    "flow, text",
    [
        ({"learner_mode": "shared"}, "the mean of every gradient"),
        ({"updates_per_iteration": 2}, "one update per iteration"),
    ],
)
def test_what_cannot_overlap_is_said(flow: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match=text):
        build(small.config(workflow={"name": "async", "learners": 2, "overlap": True, **flow}))


def test_learners_that_share_batches_average_every_gradient() -> None:
    flow = {"name": "async", "learners": 2, "learner_mode": "shared", "average_every": 2}
    with pytest.raises(
        UserError, match=r"workflow\.average_every: learners that share every batch synchronise"
    ):
        build(small.config(workflow=flow))
