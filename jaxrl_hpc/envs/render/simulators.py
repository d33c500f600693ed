"""Outside simulators from their observations: the lander between its flags, frames of Atari games."""

from __future__ import annotations

from typing import Any

import numpy as np

GROUND, SKY, BODY, LEGS, FLAGS = "#c8cfdb", "#12161f", "#b37feb", "#5b8ff9", "#f4b740"


def lander(axes: Any, obs: np.ndarray) -> None:
    """obs: x, y from the landing pad, their velocities, angle, its velocity, whether legs touch."""
    from matplotlib.patches import Polygon, Rectangle

    x, y, _, _, angle, _, left, right = map(float, obs)
    axes.set(xlim=(-1.2, 1.2), ylim=(-0.25, 1.6), aspect="equal")
    axes.add_patch(Rectangle((-2, -1), 4, 3, color=SKY, zorder=0))
    axes.add_patch(Rectangle((-2, -1), 4, 0.92, color=GROUND, zorder=1))
    for flag in (-0.2, 0.2):
        axes.plot([flag, flag], [-0.08, 0.1], color="white", linewidth=1, zorder=2)
        axes.add_patch(Polygon([(flag, 0.1), (flag, 0.04), (flag + 0.08, 0.07)], color=FLAGS, zorder=2))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])

    def placed(points: list[tuple[float, float]]) -> np.ndarray:
        return np.array(points) @ turn.T + (x, y)

    hull = [(-0.09, 0.11), (-0.11, 0.0), (-0.09, -0.03), (0.09, -0.03), (0.11, 0.0), (0.09, 0.11)]
    axes.add_patch(Polygon(placed(hull), color=BODY, zorder=4))
    for side, touches in ((-1, left), (1, right)):
        leg = placed([(side * 0.08, 0.0), (side * 0.14, -0.08)])
        axes.plot(leg[:, 0], leg[:, 1], color=FLAGS if touches else LEGS, linewidth=3, zorder=3)
    axes.set_axis_off()


def atari(axes: Any, obs: np.ndarray) -> None:
    """obs: [84, 84, frames] greys, the newest last."""
    axes.imshow(obs[..., -1], cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set_axis_off()
