"""ExaBooster: control of the Fermilab Booster's gradient magnet power supply. See docs/exabooster.md."""

from __future__ import annotations

import numpy as np
from jax import numpy as jnp

from jaxrl_hpc.envs.exabooster import bank, recording, surrogate
from jaxrl_hpc.envs.exabooster.actions import action_map
from jaxrl_hpc.envs.exabooster.config import ExaBoosterConfig
from jaxrl_hpc.envs.exabooster.environment import EnvParams, EnvState, ExaBooster
from jaxrl_hpc.envs.exabooster.generator import PLANTS

__all__ = ["INFO_KEYS", "EnvParams", "EnvState", "ExaBooster", "ExaBoosterConfig", "make", "summarise"]

INFO_KEYS = ("abs_error", "regulator_abs_error")  # summed over an episode


def make(config: ExaBoosterConfig) -> tuple[ExaBooster, EnvParams]:
    """The environment and its parameters."""
    data, changes, network = (), None, ()
    if config.model == "residual":
        assert config.recording is not None
        log = recording.read(config.recording, config.recording_rows, need_set_point=True)
        data = recording.residuals(log, PLANTS[config.fit])
        changes = np.diff(log.rows[:, 0])[log.joined]
        starts = bank.recorded(log, config.stack, config.bank_size, config.horizon)
    elif config.model == "surrogate":
        assert config.surrogate is not None
        network, _ = surrogate.load(config.surrogate)
        starts = bank.learned(network, config.stack, config.bank_size)
    else:
        starts = bank.generated(config.plants, config.stack, config.bank_size)
    deltas = np.array([config.delta_max]) if config.continuous else action_map(config.actions, changes)
    params = EnvParams(
        bank=starts,
        plants=bank.stacked_plants(),
        deltas=jnp.asarray(deltas, jnp.float32),
        residuals=data,
        surrogate=network,
        max_steps_in_episode=config.horizon,
    )
    return ExaBooster(config, params), params


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
