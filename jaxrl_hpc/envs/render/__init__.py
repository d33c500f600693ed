"""Pictures of environments, drawn from an observation alone: (axes, observation) into matplotlib axes.

matplotlib is loaded when something is drawn. A new picture is a function and a line in `find`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxrl_hpc.envs.render import classic, grids, simulators

Drawer = Callable[[Any, np.ndarray], None]

CLASSIC: dict[str, Drawer] = {
    "CartPole-v1": classic.cartpole,
    "Pendulum-v1": classic.pendulum,
    "Acrobot-v1": classic.acrobot,
    "MountainCar-v0": classic.mountain_car,
    "MountainCarContinuous-v0": classic.mountain_car,
    "LunarLander-v3": simulators.lander,
    "LunarLanderContinuous-v3": simulators.lander,
}


def find(name: str) -> Drawer | None:
    """How an environment is drawn; None if there is no picture of it."""
    kinds = {"-MinAtar": grids.minatar, "-Atari": simulators.atari}
    return next((draw for ending, draw in kinds.items() if name.endswith(ending)), CLASSIC.get(name))
