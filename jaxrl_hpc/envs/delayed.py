"""An environment whose steps take longer: a stand-in for a costly simulator.

Every step of all copies together sleeps, which needs no core. So acting overlaps with learning even where
there are more ranks than cores, as it would with a simulator on machines of its own. Results do not change,
and evaluation does not sleep.
"""

from __future__ import annotations

import time

import jax
import numpy as np
from jax.experimental import io_callback

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.types import Array, Env, EnvStep, PyTree


def wrap(env: Env, seconds: float) -> Env:
    """The environment with steps that sleep for so many seconds."""
    if env.external:
        raise UserError(f"run.step_seconds: env {env.spec.name!r} runs outside of the program; set it to 0")
    nothing = jax.ShapeDtypeStruct((), np.float32)

    def sleep() -> np.ndarray:
        time.sleep(seconds)
        return np.zeros((), np.float32)

    def step(key: Array, state: PyTree, action: Array) -> tuple[PyTree, EnvStep]:
        state, outcome = env.step(key, state, action)
        # added to the reward: a result that nobody needs would not be waited for
        return state, outcome._replace(reward=outcome.reward + io_callback(sleep, nothing, ordered=True))

    return env._replace(step=step).with_hooks(for_evaluation=env)
