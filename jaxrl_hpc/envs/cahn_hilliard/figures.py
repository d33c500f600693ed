"""Pictures of an annealing: the film at several moments, its temperature, its structure and the target."""

from __future__ import annotations

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from jaxrl_hpc.envs.cahn_hilliard.policies import AnnealingEpisode
from jaxrl_hpc.envs.cahn_hilliard.structure import WAVE_NUMBERS
from jaxrl_hpc.report.style import MATPLOTLIB

AGENT, WANTED, INK = "#0b6e99", "#d9822b", "#5b6270"


def episode_figure(episode: AnnealingEpisode, label: str, target: np.ndarray) -> Figure:
    """One episode. label: a name for people; target: S* [200]."""
    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(9.2, 5.0), layout="constrained")
        grid = figure.add_gridspec(2, 2 * len(episode.fields), height_ratios=[1, 1.2])
        for i, (field, moment) in enumerate(zip(episode.fields, episode.moments, strict=True)):
            axes = figure.add_subplot(grid[0, 2 * i : 2 * i + 2])
            axes.imshow(field, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            title = f"after {moment} actions" if moment else "start"
            axes.set_title(title, fontsize=9, fontweight="normal", color=INK)
        left = figure.add_subplot(grid[1, : len(episode.fields)])
        left.step(np.arange(len(episode.temperature)), episode.temperature, where="pre", color=AGENT)
        left.set_xlabel("Action")
        left.set_ylabel("Temperature")
        left.set_ylim(0.0, 1.05)
        left.set_title(f"{label}: return {episode.reward.sum():.3f}")
        right = figure.add_subplot(grid[1, len(episode.fields) :])
        right.plot(WAVE_NUMBERS, target / target.max(), color=WANTED, label="target S*")
        right.plot(WAVE_NUMBERS, episode.structure[-1], color=AGENT, label="final S")
        right.set_xlabel("Wave number q (rad per 1/128 of the side)")
        right.set_ylabel("Structure S / max S*")
        right.set_xlim(0, 1.5)
        right.legend()
    return figure
