"""What agents do every so many updates, target copies and delayed policies, where ranks average parameters:
every rank counts its own updates, and no average shifts that count."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.schema import traced_values
from jaxrl_hpc.types import Agent, LearnerState
from jaxrl_hpc.workflows import update
from jaxrl_hpc.workflows.gossip.replica import replicas
from jaxrl_hpc.workflows.gossip.topology import average, neighbours
from tests.agents.numpy_check import windows
from tests.tiers import quick
from tests.workflows.test_exchange_schemes import AGENTS, CONTINUOUS, DISCRETE, dqn, flat

RANKS, ROUNDS = 3, 24
NAMES = ["td3", "td3-3", "dqn"]


class Made(NamedTuple):
    agent: Agent
    learners: list[LearnerState]  # of the ranks, with the same parameters
    learn: Any  # (learner, rank, update) -> learner
    period: int


def made(name: str) -> Made:
    module, config, period = AGENTS[name]
    spec = DISCRETE if module is dqn else CONTINUOUS
    agent = module.make(config, spec, num_envs=4)
    hypers = {k: jnp.float32(v) for k, v in traced_values(config).items()}
    learner = jax.jit(agent.init)(jax.random.key(0), hypers)

    @jax.jit
    def learn(learner: LearnerState, batch: Any, key: jax.Array) -> LearnerState:
        return update.learn(agent, learner, batch, key)[0]

    def own(learner: LearnerState, rank: int, number: int) -> LearnerState:
        batch = windows(1, 8, 3, spec.num_actions or spec.action_shape, seed=100 * rank + number)
        return learn(learner, batch, jax.random.key(100 * rank + number))

    return Made(agent, [learner] * RANKS, own, period)


def slow_part(learner: LearnerState) -> np.ndarray:
    """What moves once in a period: TD3's targets move with its policy."""
    return flat(learner.target)


def check(steps: list[int], updates: int, period: int) -> None:
    """All periods of a rank's own updates, and nothing else."""
    assert steps == list(range(steps[0], updates + 1, period)) and steps[0] <= period
    assert len(steps) >= updates // period >= 2


@pytest.mark.parametrize("moments", quick([True, False], [True]))
@pytest.mark.parametrize("name", quick(NAMES, ["td3"]))
def test_gossip_leaves_every_rank_its_own_period(name: str, moments: bool) -> None:
    """Rank r makes an update in every (r + 1)-th round, and averages with others who are further."""
    found = made(name)
    learners = list(found.learners)
    scheme, _ = replicas(found.agent, jax.eval_shape(lambda: learners[0]), moments)
    published = [np.asarray(scheme.first(learner)) for learner in learners]
    moved: list[list[int]] = [[] for _ in range(RANKS)]
    for number in range(1, ROUNDS + 1):
        for rank in (r for r in range(RANKS) if number % (r + 1) == 0):
            before, after = learners[rank], found.learn(learners[rank], rank, number)
            assert int(after.step) == number // (rank + 1)
            if (slow_part(before) != slow_part(after)).any():
                moved[rank].append(int(after.step))
            others = {o: published[o] for o in neighbours("random", rank, RANKS, number, seed=3)}
            mixed = average(np.asarray(scheme.first(after)), others, rank, rate=1.0)
            learners[rank] = scheme.install(after, jnp.asarray(mixed))
            published[rank] = mixed
    for rank in range(RANKS):
        check(moved[rank], ROUNDS // (rank + 1), found.period)


@pytest.mark.parametrize("name", quick(NAMES, ["td3"]))
def test_learners_that_average_now_and_then_keep_the_same_period(name: str) -> None:
    """Means every five updates, which no period divides."""
    found = made(name)
    learners = list(found.learners)
    moved: list[list[int]] = [[] for _ in range(RANKS)]
    for number in range(1, ROUNDS + 1):
        for rank, before in enumerate(learners):
            learners[rank] = after = found.learn(before, rank, number)
            if (slow_part(before) != slow_part(after)).any():
                moved[rank].append(int(after.step))
        if number % 5 == 0:  # as LearnerPrograms.average
            parts = [(one.params, one.target, one.opt) for one in learners]
            stacked = [jnp.stack(leaves) for leaves in zip(*map(jax.tree.leaves, parts), strict=True)]
            means = iter([leaf.mean(axis=0) for leaf in stacked if jnp.issubdtype(leaf.dtype, jnp.floating)])
            params, target, opt = update.average_floats(parts[0], lambda _, new=means: list(new))
            learners = [one._replace(params=params, target=target, opt=opt) for one in learners]
    assert moved[0] == moved[1] == moved[2]
    check(moved[0], ROUNDS, found.period)
