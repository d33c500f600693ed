"""Grids of the MinAtar games: one colour per kind of object."""

from __future__ import annotations

from typing import Any

import numpy as np

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
