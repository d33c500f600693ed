"""ExaBooster: control of the Fermilab Booster's gradient magnet power supply. See docs/exabooster.md.

Nothing heavy is imported here: gymnax comes in when an environment is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from jaxrl_hpc.envs.exabooster.config import ExaBoosterConfig
from jaxrl_hpc.types import Env

if TYPE_CHECKING:
    from jaxrl_hpc.envs.exabooster.environment import EnvParams, ExaBooster

NAMES = ("ExaBooster-v0", "ExaBoosterContinuous-v0")
INFO_KEYS = ("abs_error", "regulator_abs_error")  # per step, to be summed over an episode


def make(config: ExaBoosterConfig) -> tuple[ExaBooster, EnvParams]:
    """The gymnax environment and its parameters."""
    from jaxrl_hpc.envs.exabooster.build import build

    return build(config)


def make_env(config: ExaBoosterConfig) -> Env:
    """The environment as workflows take it."""
    from jaxrl_hpc.envs.gymnax_bridge import from_gymnax

    env, params = make(config)
    return from_gymnax(env, params, config.name, INFO_KEYS, summarise)


def summarise(sums: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Sums of INFO_KEYS over episodes [episodes] -> the improvement factor over all of them.

    The sums come back with it: pooling over seeds adds them before dividing.
    """
    agent, regulator = (np.asarray(sums[name], np.float64) for name in INFO_KEYS)
    return {
        "improvement": np.asarray(regulator.sum() / agent.sum()),
        "abs_error": agent,
        "regulator_abs_error": regulator,
    }
