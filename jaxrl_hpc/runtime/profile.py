"""The shares of acting, replay and learning in an iteration's time.

The iteration is one compiled program, which cannot be inspected while it runs. So each part runs alone, on
copies of the run's own state, in a loop that depends on its own result; their times give the shares. This
happens once, before training, and only when `run.profile` is on.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_hpc.checkpoint.checkpointer import state_bytes
from jaxrl_hpc.runtime import host
from jaxrl_hpc.runtime.seeds import SeedRunner
from jaxrl_hpc.types import Array, PyTree, Workflow

ENOUGH = 0.05  # seconds of a measurement
TRIES = 3


def shares_of(runner: SeedRunner) -> dict[str, float]:
    """Share of each part in an iteration, measured on the first lane; empty where that is not possible."""
    state = runner.states[0]
    if runner.parts.env.external:  # a step taken for the measurement would be missing from an episode
        return {}
    if 3 * state_bytes(state) > host.available_memory():
        return {}
    if runner.stacked:
        state = jax.tree.map(lambda x: x[0], state)
    return measured_shares(runner.parts.workflow, state)


def measured_shares(workflow: Workflow, state: PyTree) -> dict[str, float]:
    """Shares of an iteration's parts, from a state after the warm-up, if the workflow names its parts."""
    seconds = {
        name: timed(body, jax.tree.map(jnp.copy, start))
        for name, (body, start) in workflow.profile(state).items()
    }
    whole = sum(seconds.values())
    return {name: value / whole for name, value in seconds.items()}


def timed(body: Callable[[Array, PyTree], PyTree], start: PyTree) -> float:
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
