"""Classic control tasks as they look in Gymnasium, from their observations."""

from __future__ import annotations

from typing import Any

import numpy as np

INK, ACCENT, WARM, SOFT = "#2b3242", "#2f6fdf", "#e8710a", "#c8cfdb"


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
