"""Checks that an agent supports the action space of an environment."""

from __future__ import annotations

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.types import EnvSpec


def one_choice(spec: EnvSpec, agent: str, otherwise: str, masks: bool = False) -> int:
    """How many discrete actions there are.

    Args:
      agent: its name.
      otherwise: the agent to use where actions are continuous.
      masks: whether it supports action masks.
    """
    if spec.action_sizes:
        raise UserError(
            f"agent {agent!r} makes one choice per step; env {spec.name!r} has {len(spec.action_sizes)} "
            "(MultiDiscrete): use ppo or a2c"
        )
    if spec.num_actions is None:
        raise UserError(
            f"agent {agent!r} needs discrete actions; env {spec.name!r} has continuous ones: use {otherwise}"
        )
    if spec.action_mask and not masks:
        raise UserError(
            f"agent {agent!r} does not support action masks, which env {spec.name!r} has: use dqn, pqn, ppo "
            "or a2c"
        )
    return spec.num_actions


def check_continuous(spec: EnvSpec, agent: str) -> None:
    if spec.discrete:
        instead = "ppo" if spec.action_sizes else "dqn"
        raise UserError(
            f"agent {agent!r} needs continuous actions; env {spec.name!r} has discrete ones: use {instead}"
        )
