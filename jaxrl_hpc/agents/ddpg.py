"""DDPG (Lillicrap et al. 2016): TD3 with one critic, no delay and no smoothing."""

from __future__ import annotations

from typing import Literal

from jaxrl_hpc.agents import td3
from jaxrl_hpc.schema import static, traced


class Config(td3.TD3Options):
    """DDPG's settings."""

    name: Literal["ddpg"] = "ddpg"
    twin: bool = static(False, "two critics; targets use the smaller value")
    policy_delay: int = static(1, "critic updates per update of the policy and the targets", ge=1)
    smoothing: float = traced(0.0, "noise on target actions, in half ranges of the action", ge=0)
    noise: Literal["gaussian", "ou"] = static("ou", "exploration: independent, or correlated over time")


make = td3.make
