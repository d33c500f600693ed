"""An environment with slow steps, to emulate a costly simulator.

Every step of all copies together sleeps (ops/pause.py), which needs no core. So acting overlaps with learning
even with more ranks than cores, as it would with a simulator on other machines. Results do not change, and
evaluation does not sleep.

Step times are constant, or drawn from a Pareto distribution with this mean: P(longer than t) = (t₀ / t)^tail.
A smaller `tail` is heavier; up to 2 the variance is infinite.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.ops import pause
from jaxrl_hpc.types import Array, Env, EnvStep, PyTree

TAIL_STREAM = 0x7A11  # folded into a step's key, which the environment consumes itself


def wrap(env: Env, seconds: float, tail: float = 0.0) -> Env:
    """The environment with steps that sleep for these seconds, on average if there is a `tail`."""
    if env.external:
        raise UserError(f"run.step_seconds: env {env.spec.name!r} runs outside the program; set it to 0")
    pause.require("run.step_seconds")

    def step(key: Array, state: PyTree, action: Array) -> tuple[PyTree, EnvStep]:
        state, outcome = env.step(key, state, action)
        time = (
            pareto(jax.random.fold_in(key[0], TAIL_STREAM), seconds, tail) if tail else jnp.float32(seconds)
        )
        # added to the reward: the compiler would not wait for an unused result
        waited = pause.sleep(time, outcome.reward[0], in_turn=False)
        return state, outcome._replace(reward=outcome.reward + waited)

    return env._replace(step=step).with_hooks(for_evaluation=env)


def pareto(key: Array, mean: float, tail: float) -> Array:
    """A positive number [] with this mean; tail > 1."""
    left = 1.0 - jax.random.uniform(key)  # in (0, 1]
    return mean * (tail - 1) / tail * left ** (-1.0 / tail)
