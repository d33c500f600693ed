"""How the time of a fused iteration divides into acting, replay and learning.

The iteration is one compiled program, which nobody can look into while it runs. So each part runs alone, on
copies of the run's own state, in a loop that depends on its own result; their times give the shares. This
happens once, before training, and only when `run.profile` is on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_hpc import machine, rollout
from jaxrl_hpc.build import Parts
from jaxrl_hpc.fleet import Fleet
from jaxrl_hpc.io.checkpoint import state_bytes
from jaxrl_hpc.types import Array, PyTree
from jaxrl_hpc.workflows import learning

ENOUGH = 0.05  # seconds of a measurement
TRIES = 3


def shares_of(fleet: Fleet, flow: Any) -> dict[str, float]:
    """Of a fleet that is ready to train, by its first lane; empty where they cannot be measured."""
    state = fleet.states[0]
    if fleet.parts.env.external:  # a step taken to measure it would be missing from an episode
        return {}
    if flow.name != "fused" or 3 * state_bytes(state) > machine.available_memory():
        return {}
    if fleet.stacked:
        state = jax.tree.map(lambda x: x[0], state)
    return measured_shares(fleet.parts, flow, state)


def measured_shares(parts: Parts, flow: Any, state: PyTree) -> dict[str, float]:
    """Share of each part in an iteration. `state` is that of the fused workflow, after its warm-up."""
    seconds = {
        name: timed(body, jax.tree.map(jnp.copy, start))
        for name, (body, start) in loops(parts, flow, state).items()
    }
    whole = sum(seconds.values())
    return {name: value / whole for name, value in seconds.items()}


def loops(parts: Parts, flow: Any, state: PyTree) -> dict[str, tuple[Callable[[Array, Any], Any], Any]]:
    """Part -> (body of a loop that does it once per iteration, what it begins with)."""
    env, agent, replay = parts.env, parts.agent, parts.replay
    key, actor = jax.random.key(0), agent.actor(state.learner)

    def acting(_: Array, copies: Any) -> Any:
        return rollout.unroll(env, agent, actor, copies, flow.unroll_length)[0]

    trajectory = jax.jit(lambda c: rollout.unroll(env, agent, actor, c, flow.unroll_length)[1])(state.rollout)
    found: dict[str, tuple[Callable[[Array, Any], Any], Any]] = {"acting": (acting, state.rollout)}
    updates = flow.updates_per_iteration if replay else 1
    batch = learning.as_batch(trajectory)
    if replay is not None:
        batch = jax.jit(replay.sample)(state.replay, key, state.learner.progress)

        def remembering(i: Array, carry: Any) -> Any:
            memory, total = carry
            memory = replay.add(memory, trajectory, None)
            for number in range(updates):
                draw = jax.random.fold_in(jax.random.fold_in(key, i), number)
                drawn = replay.sample(memory, draw, state.learner.progress)
                total += sum(leaf.astype(jnp.float32).sum() for leaf in jax.tree.leaves(drawn))
                memory = replay.prioritise(memory, drawn.index, drawn.weight)
            return memory, total

        found["replay"] = (remembering, (state.replay, jnp.float32(0)))

    def improving(i: Array, learner: Any) -> Any:
        for number in range(updates):
            draw = jax.random.fold_in(jax.random.fold_in(key, i), number)
            learner = learning.learn(agent, learner, batch, draw)[0]
        return learner

    found["learning"] = (improving, state.learner)
    return found


def timed(body: Callable[[Array, Any], Any], start: Any) -> float:
    """Seconds of one turn, from a loop that is long enough to be measured. `start` is used up.

    The shortest of a few: on a busy machine a single one may have waited for a core most of its time.
    """
    loop = jax.jit(lambda turns, x: jax.lax.fori_loop(0, turns, body, x), donate_argnums=1)
    turns, state = 1, jax.block_until_ready(loop(1, start))
    while True:
        seconds = float("inf")
        for _ in range(TRIES):
            begin = time.perf_counter()
            state = jax.block_until_ready(loop(turns, state))
            seconds = min(seconds, time.perf_counter() - begin)
        if seconds > ENOUGH or turns > 2**20:
            return seconds / turns
        turns *= 4
