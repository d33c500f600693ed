"""MBPO with TD3 instead of SAC: see mbpo.py and td3.py."""

from __future__ import annotations

from typing import Literal

from jaxrl_hpc.agents import mbpo, td3
from jaxrl_hpc.types import Agent, EnvSpec


class Config(mbpo.PlanningConfig, td3.TD3Options):
    """MBPO with TD3."""

    name: Literal["mbpo_td3"] = "mbpo_td3"


def make(config: Config, spec: EnvSpec, *, num_envs: int) -> Agent:
    mbpo.check_spaces(config.name, spec)
    return mbpo.wrap(config, config, spec, td3.make(config, spec, num_envs=num_envs))
