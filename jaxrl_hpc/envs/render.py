"""Pictures of environments, drawn from an observation alone: (axes, observation) into matplotlib axes.

matplotlib is loaded when something is drawn. A new picture is a function and a line in `find`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Drawer = Callable[[Any, np.ndarray], None]

INK, ACCENT, WARM, SOFT = "#2b3242", "#2f6fdf", "#e8710a", "#c8cfdb"


# -- classic control, as it looks in Gymnasium ------------------------------


def _frame(axes: Any, x: tuple[float, float], y: tuple[float, float]) -> None:
    axes.set(xlim=x, ylim=y, aspect="equal")
    axes.set_axis_off()


def _rod(axes: Any, start: np.ndarray, end: np.ndarray, shade: str) -> None:
    axes.plot(
        [start[0], end[0]], [start[1], end[1]], color=shade, linewidth=7, solid_capstyle="round", zorder=3
    )


def _joint(axes: Any, place: np.ndarray) -> None:
    axes.plot(*place, "o", color=INK, markersize=6, zorder=4)


def cartpole(axes: Any, obs: np.ndarray) -> None:
    """obs: position, velocity, angle from upright, angular velocity. The pole is a metre long."""
    from matplotlib.patches import Rectangle

    position, _, angle, _ = map(float, obs)
    _frame(axes, (-2.6, 2.6), (-0.5, 1.4))
    axes.axhline(0, color=SOFT, linewidth=2, zorder=1)
    for limit in (-2.4, 2.4):  # beyond these the episode ends
        axes.plot([limit, limit], [-0.12, 0.12], color=WARM, linewidth=2)
    axes.add_patch(Rectangle((position - 0.3, -0.15), 0.6, 0.3, color=INK, zorder=2))
    base = np.array([position, 0.15])
    _rod(axes, base, base + np.array([np.sin(angle), np.cos(angle)]), WARM)
    _joint(axes, base)


def pendulum(axes: Any, obs: np.ndarray) -> None:
    """obs: cosine and sine of the angle from upright, angular velocity."""
    cosine, sine, speed = map(float, obs)
    _frame(axes, (-1.9, 1.9), (-1.3, 1.3))
    turn = np.linspace(0, 2 * np.pi, 100)
    axes.plot(np.sin(turn), np.cos(turn), color=SOFT, linewidth=1, zorder=1)
    _rod(axes, np.zeros(2), np.array([-sine, cosine]), ACCENT)
    _joint(axes, np.zeros(2))
    axes.plot([1.5, 1.5], [0, speed / 8], color=WARM, linewidth=6, solid_capstyle="butt")  # at most 8 rad/s
    axes.plot([1.4, 1.6], [0, 0], color=INK, linewidth=1)


def acrobot(axes: Any, obs: np.ndarray) -> None:
    """obs: cosine and sine of both angles, velocities. The tip must rise above the line."""
    cos1, sin1, cos2, sin2 = map(float, obs[:4])
    _frame(axes, (-3.0, 3.0), (-2.2, 2.2))
    axes.axhline(1.0, color=WARM, linewidth=1.5, linestyle="--", zorder=1)
    elbow = np.array([sin1, -cos1])
    both = np.arctan2(sin1, cos1) + np.arctan2(sin2, cos2)
    _rod(axes, np.zeros(2), elbow, ACCENT)
    _rod(axes, elbow, elbow + np.array([np.sin(both), -np.cos(both)]), "#12a17b")
    _joint(axes, np.zeros(2))
    _joint(axes, elbow)


def mountain_car(axes: Any, obs: np.ndarray) -> None:
    """obs: position, velocity. The hill is sin(3 x)."""

    def height(x: Any) -> Any:
        return 0.45 * np.sin(3 * x) + 0.55

    position = float(obs[0])
    _frame(axes, (-1.25, 0.65), (-0.05, 1.2))
    track = np.linspace(-1.2, 0.6, 200)
    axes.fill_between(track, 0, height(track), color="#eef1f6", zorder=1)
    axes.plot(track, height(track), color=INK, linewidth=1.5, zorder=2)
    goal = 0.5
    axes.plot([goal, goal], [height(goal), height(goal) + 0.17], color=INK, linewidth=1.5)
    axes.fill([goal, goal + 0.09, goal], height(goal) + np.array([0.17, 0.135, 0.1]), color=WARM)
    axes.plot(position, height(position) + 0.035, "o", color=ACCENT, markersize=13, zorder=3)


# -- MinAtar: one colour per kind of object ---------------------------------

BACKGROUND = "#12161f"
# the player is the first channel in all games
SHADES = (
    "#ffffff", "#f4b740", "#5b8ff9", "#e8684a", "#5ad8a6", "#b37feb",
    "#ff99c3", "#78d3f8", "#a3831a", "#d4d7dd",
)  # fmt: skip


def minatar(axes: Any, obs: np.ndarray) -> None:
    """obs: [height, width, channels], nonzero where there is something; earlier channels are on top."""
    from matplotlib.colors import to_rgb

    image = np.broadcast_to(np.array(to_rgb(BACKGROUND)), (*obs.shape[:2], 3)).copy()
    for channel in reversed(range(obs.shape[-1])):
        image[np.asarray(obs[..., channel]) > 0] = to_rgb(SHADES[channel % len(SHADES)])
    axes.imshow(image, interpolation="nearest")
    axes.set_axis_off()


# -- simulators outside the program ---------------------------------------

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


CLASSIC: dict[str, Drawer] = {
    "CartPole-v1": cartpole,
    "Pendulum-v1": pendulum,
    "Acrobot-v1": acrobot,
    "MountainCar-v0": mountain_car,
    "MountainCarContinuous-v0": mountain_car,
    "LunarLander-v3": lander,
    "LunarLanderContinuous-v3": lander,
}


def find(name: str) -> Drawer | None:
    """How an environment is drawn; None if there is no picture of it."""
    kinds = {"-MinAtar": minatar, "-Atari": atari}
    return next((draw for ending, draw in kinds.items() if name.endswith(ending)), CLASSIC.get(name))
