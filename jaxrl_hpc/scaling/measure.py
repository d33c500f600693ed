"""Measures the costs of a config's parts on this machine: acting, the policy alone, learning, packing.

Each part is the program that the workflow runs, timed alone in this process. The network between ranks is not
measured: latency and bandwidth are given.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.config import Config
from jaxrl_hpc.rollout import Episodes, RolloutState
from jaxrl_hpc.runtime.build import Parts, hypers_of
from jaxrl_hpc.scaling import model
from jaxrl_hpc.scaling.costs import Costs
from jaxrl_hpc.types import Array, PyTree, Transition
from jaxrl_hpc.workflows.actor_learner.learner import ActorLearnerState, LearnerGroup, LearnerPrograms
from jaxrl_hpc.workflows.actor_learner.messages import ActorPrograms, Header, UnrollMessage, make_acting
from jaxrl_hpc.workflows.actor_learner.runtime import ActorLearner

ENOUGH = 0.3  # seconds of one measurement
ROUNDS = 7
ALONE = LearnerGroup(1, 0, False, None)


def timed(function: Callable[[], Any]) -> float:
    """Seconds of a call: the median over rounds."""
    jax.block_until_ready(function())
    start = time.perf_counter()
    jax.block_until_ready(function())
    count = max(1, int(ENOUGH / ROUNDS / max(time.perf_counter() - start, 1e-7)))
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(count):
            result = function()
        jax.block_until_ready(result)
        rounds.append((time.perf_counter() - start) / count)
    return float(np.median(rounds))


def costs_of(config: Config, parts: Parts, network: model.NetworkModel, cores: int) -> Costs:
    """Costs of a config with actors and learners in separate processes."""
    flow: Any = config.workflow
    learning = cast(ActorLearner, parts.workflow).learning
    hypers = jax.tree.map(jnp.float32, hypers_of(config))
    key = jax.random.key(config.run.seed)
    acting = make_acting(
        parts.env, parts.agent, hypers["agent"],
        copies=flow.num_envs, length=flow.unroll_length, priorities=flow.actor_priorities,
    )  # fmt: skip
    state = jax.jit(lambda: learning.init(key, hypers, ALONE))()
    params = jax.jit(parts.agent.actor)(state.learner)
    rollout = acting.start(key, np.int32(0))
    # not the run's own program: its argument is donated, and here it is used again and again
    unroll = jax.jit(lambda p, r: acting.unroll(p, r))
    _, ended, trajectory, rated = unroll(params, rollout)
    whole = timed(lambda: unroll(params, rollout))
    policy = _policy(parts, params, rollout, flow.num_envs)
    message = _message(acting, ended, trajectory, rated)
    line = model.LatencyBandwidth(network.latency, network.bandwidth)
    return Costs(
        length=flow.unroll_length,
        copies=flow.num_envs,
        compute=max(whole / flow.unroll_length - policy.time(flow.num_envs), 1e-9),
        sleep=config.run.step_seconds,
        inference=policy,
        update=_update(learning, state, trajectory, rated) / learning.settings.batch,
        handle=message,
        message=line,
        copy=line,
        reduce=line,
        atomic=2 * network.latency,
        params=acting.params.nbytes,
        unroll=acting.message.nbytes,
        observation=acting.message.nbytes // flow.unroll_length,
        cores=cores,
    )


def _policy(parts: Parts, params: PyTree, rollout: RolloutState, copies: int) -> model.LatencyBandwidth:
    """Seconds by number of observations, inside a loop as in an unroll."""
    turns = 32

    def forward(params: PyTree, rollout: RolloutState) -> Array:
        def one(_: Array, carry: Array) -> Array:
            action, _, _ = parts.agent.act(params, rollout.carry, rollout.obs, carry, False)
            step = jnp.any(action != 0).astype(jnp.int32)  # the next turn depends on this one
            return jax.vmap(jax.random.fold_in, (0, None))(carry, step)

        return jax.lax.fori_loop(0, turns, one, rollout.key)

    def several(times: int) -> RolloutState:
        found: RolloutState = jax.tree.map(lambda x: jnp.concatenate([x] * times), rollout._replace(env=()))
        return found

    program = jax.jit(forward)

    def seconds(copies: RolloutState) -> float:
        return timed(lambda: jax.random.key_data(program(params, copies))) / turns

    few, many = seconds(several(1)), seconds(several(8))
    slope = max((many - few) / (7 * copies), 1e-12)
    return model.LatencyBandwidth(max(few - slope * copies, 1e-9), 1 / slope)


def _message(acting: ActorPrograms, ended: Episodes, trajectory: Transition, rated: PyTree) -> float:
    buffer = acting.message.empty()
    header = Header(*(np.int64(0),) * 3, *(np.float64(0),) * 2)
    return timed(lambda: acting.message.pack(UnrollMessage(header, ended, trajectory, rated), buffer))


def _update(
    learning: LearnerPrograms, state: ActorLearnerState, trajectory: Transition, rated: PyTree
) -> float:
    """Seconds of an iteration, with a replay that is full enough."""
    unrolls = [(trajectory, rated)] * learning.settings.batch
    if learning.replay:
        steps = learning.settings.batch * learning.settings.copies * learning.settings.length
        fill = jax.jit(lambda s: learning.fill(s, unrolls, ALONE), donate_argnums=0)
        for _ in range(-(-learning.replay.min_steps // steps)):
            state = fill(state)
    program = jax.jit(lambda s: learning.iterate(s, {}, unrolls, ALONE)[0], donate_argnums=0)
    holder = [state]

    def once() -> Array:
        holder[0] = program(holder[0])
        return holder[0].iteration

    return timed(once)
