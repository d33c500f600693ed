"""Annealing of a block copolymer film (EXARL's ExaCH): control the temperature to reach a target structure.

Imports nothing heavy: gymnax is imported when an environment is made.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from jaxrl_hpc.schema import ComponentConfig, static
from jaxrl_hpc.types import Array, Env, PyTree

NAME = "CahnHilliard-v0"


class Config(ComponentConfig):
    """The annealing environment's settings."""

    name: Literal["CahnHilliard-v0"] = "CahnHilliard-v0"
    size: Literal[64, 128] = static(128, "points along a side of the film")
    horizon: int = static(30, "actions until the episode is truncated", ge=1)
    solver_steps: int = static(67, "solver steps at each temperature", ge=1)
    start_temperature: float = static(1.0, "temperature before the first action", ge=0.1, le=1.0)


def make(config: Config) -> Env:
    from jaxrl_hpc.envs.cahn_hilliard.environment import CahnHilliard
    from jaxrl_hpc.envs.gymnax import from_gymnax

    env = CahnHilliard(config)
    params = env.default_params

    def picture(act: Callable[..., Any], carry: PyTree, key: Array, label: str, folder: Path) -> None:
        """One episode as episode.png."""
        from jaxrl_hpc.envs.cahn_hilliard.figures import episode_figure
        from jaxrl_hpc.envs.cahn_hilliard.policies import record

        episode_figure(record(env, act, carry, key), label, env.target).savefig(folder / "episode.png")

    return from_gymnax(env, params, config.name).with_hooks(picture=picture)
