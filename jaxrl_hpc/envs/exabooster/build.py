"""From a config to the gymnax environment and its parameters."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.envs.exabooster import bank, recording, surrogate
from jaxrl_hpc.envs.exabooster.actions import action_map
from jaxrl_hpc.envs.exabooster.config import ExaBoosterConfig
from jaxrl_hpc.envs.exabooster.environment import EnvParams, ExaBooster
from jaxrl_hpc.envs.exabooster.generator import PLANTS
from jaxrl_hpc.types import PyTree


def build(config: ExaBoosterConfig) -> tuple[ExaBooster, EnvParams]:
    """See `jaxrl_hpc.envs.exabooster.make`."""
    residuals: PyTree = ()
    network: PyTree = ()
    changes = None
    if config.model == "residual":
        assert config.recording is not None
        log = recording.read(config.recording, config.recording_rows, need_set_point=True)
        residuals = recording.residuals(log, PLANTS[config.fit])
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
        residuals=residuals,
        surrogate=network,
        max_steps_in_episode=config.horizon,
    )
    return ExaBooster(config, params), params
