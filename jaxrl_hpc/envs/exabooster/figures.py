"""Pictures: the generator's statistics against the recording's, and one episode of agent and regulator.

episode_figure(record_episode(env, params, policy, key), "PPO").savefig("episode.png")
"""

from __future__ import annotations

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxrl_hpc.envs.exabooster import statistics
from jaxrl_hpc.envs.exabooster.channels import (
    ERROR_AUTOCORRELATION,
    ERROR_IQR,
    MEAN_ABS_ERROR,
    NAMES,
    TARGETS,
    TICK_SECONDS,
)
from jaxrl_hpc.envs.exabooster.episodes import BoosterEpisode
from jaxrl_hpc.report.style import MATPLOTLIB

AGENT, REGULATOR, INK = "#0b6e99", "#d9822b", "#5b6270"
_WORDS = {"high_pass_std": "1 s high-pass std", "minute_std": "1 min mean std", "median_step": "median |Δ|"}


def episode_figure(episode: BoosterEpisode, agent: str) -> Figure:
    """IMINER and VIMIN over time, the regulator's behind the agent's. agent: a name for people."""
    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(9.2, 5.2), layout="constrained")
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
        ours, theirs = (np.abs(x[1:]).mean() for x in (episode.iminer, episode.regulator_iminer))
        _error_panel(top, episode, f"{agent}: mean |IMINER| {ours:.3f}", f"regulator: {theirs:.3f}")
        lines = (
            (episode.regulator_vimin, REGULATOR, 1.2, 0.8),
            (episode.vimin, AGENT, 1.6, 1.0),
        )
        for values, shade, width, alpha in lines:
            bottom.step(episode.seconds, values, where="post", color=shade, linewidth=width, alpha=alpha)
        bottom.set_ylabel("B:VIMIN (A)")
        bottom.ticklabel_format(axis="y", useOffset=False)
        bottom.set_xlabel("Time (s)")
        bottom.set_xlim(episode.seconds[0], episode.seconds[-1])
        top.set_title(
            f"{agent} holds the magnet current {episode.improvement:.2f}× better than the regulator"
        )
        if episode.improvement < 1:
            top.set_title(f"{agent} against the regulator: improvement factor {episode.improvement:.2f}")
        bottom.text(
            1.0,
            -0.32,
            "same start, same noise",
            transform=bottom.transAxes,
            ha="right",
            fontsize=8,
            color=INK,
        )
    return figure


def _error_panel(panel: Axes, episode: BoosterEpisode, ours: str, theirs: str) -> None:
    seconds = episode.seconds
    panel.axhline(0, color=INK, linewidth=0.7)
    panel.fill_between(seconds, 0, episode.regulator_iminer, color=REGULATOR, alpha=0.16, linewidth=0)
    panel.plot(seconds, episode.regulator_iminer, color=REGULATOR, linewidth=1.3, alpha=0.9, label=theirs)
    panel.fill_between(seconds, 0, episode.iminer, color=AGENT, alpha=0.28, linewidth=0)
    panel.plot(seconds, episode.iminer, color=AGENT, linewidth=1.9, label=ours)
    panel.set_ylabel("B:IMINER (0.1 A)")
    limit = 1.32 * max(np.abs(episode.iminer).max(), np.abs(episode.regulator_iminer).max())
    panel.set_ylim(-limit, limit)
    handles, labels = panel.get_legend_handles_labels()
    panel.legend(handles[::-1], labels[::-1], loc="upper left", ncols=2, frameon=False)


def statistics_figure(rows: np.ndarray) -> Figure:
    """rows [ticks, chains, 5] of the generator under the regulator."""
    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(9.6, 6.2), layout="constrained")
        (trace, ratio), (correlation, density) = figure.subplots(2, 2)
        _trace(trace, rows)
        _ratios(ratio, rows)
        lags = np.arange(1, 22)
        ours = statistics.autocorrelation(rows[..., 1], 21)
        correlation.axhline(0, color=INK, linewidth=0.7)
        correlation.vlines(lags, 0, ERROR_AUTOCORRELATION, color=REGULATOR, linewidth=5, alpha=0.45)
        correlation.plot(lags, ERROR_AUTOCORRELATION, "_", color=REGULATOR, label="recording, June 2019")
        correlation.plot(lags, ours, "o-", color=AGENT, markersize=4, linewidth=1.3, label="generator")
        rmse = np.sqrt(np.mean((ours - ERROR_AUTOCORRELATION) ** 2))
        correlation.set_title(f"Autocorrelation of IMINER (RMSE {rmse:.3f})")
        correlation.set_xlabel("Lag (ticks of 1/15 s)")
        correlation.legend(frameon=False)
        density.hist(
            rows[..., 1].ravel(), bins=np.arange(-0.9975, 1, 0.015), density=True, color=AGENT, alpha=0.8
        )
        quartiles = np.percentile(rows[..., 1], [25, 75])
        for edge in quartiles:
            density.axvline(edge, color=AGENT, linewidth=1)
        for edge in (-0.0003 - ERROR_IQR / 2, -0.0003 + ERROR_IQR / 2):
            density.axvline(edge, color=REGULATOR, linewidth=1.6, linestyle="--")
        density.set_title("IMINER, quartiles (dashed: recording)")
        density.set_xlabel("B:IMINER (0.1 A)")
        density.set_yticks([])
    return figure


def _trace(panel: Axes, rows: np.ndarray) -> None:
    window = slice(0, 450)
    seconds = np.arange(450) * TICK_SECONDS
    panel.plot(seconds, rows[window, 0, 1], color=AGENT, linewidth=1.1)
    panel.set_ylabel("B:IMINER (0.1 A)", color=AGENT)
    panel.set_xlabel("Time (s)")
    panel.set_xlim(0, 30)
    other = panel.twinx()
    other.grid(False)
    other.plot(seconds, rows[window, 0, 3] / 1000, color=INK, linewidth=0.8, alpha=0.45)
    other.set_ylabel("I:IB (kA)", color=INK)
    panel.set_title("Thirty generated seconds")


def ratios(rows: np.ndarray) -> dict[str, float]:
    """Every statistic of the generator over the recording's."""
    error = statistics.error_statistics(rows)
    result = {"IMINER mean |e|": error["mean_abs"] / MEAN_ABS_ERROR, "IMINER IQR": error["iqr"] / ERROR_IQR}
    for index, name in enumerate(NAMES):
        ours = statistics.channel_statistics(rows[..., index])
        for key, word in _WORDS.items():
            result[f"{name.split(':')[1]} {word}"] = ours[key] / getattr(TARGETS[name], key)
    return result


def _ratios(panel: Axes, rows: np.ndarray) -> None:
    values = ratios(rows)
    places = np.arange(len(values))[::-1]
    panel.axvspan(0.9, 1.1, color=INK, alpha=0.12, linewidth=0)
    panel.axvline(1, color=INK, linewidth=0.8)
    near = [0.9 <= value <= 1.1 for value in values.values()]
    panel.scatter(
        list(values.values()), places, c=[AGENT if ok else REGULATOR for ok in near], s=26, zorder=3
    )
    panel.set_yticks(places, list(values), fontsize=7)
    panel.set_xscale("log")
    low, high = min(0.9, *values.values()), max(1.1, *values.values())
    known = (0.1, 0.2, 0.5, 1, 2, 5, 10) if high < 20 * low else (0.001, 0.01, 0.1, 1, 10, 100)
    shown = [tick for tick in known if low <= tick <= high]
    panel.set_xticks(shown, [f"{tick:g}" for tick in shown])
    panel.minorticks_off()
    panel.set_title("Generator / recording (band: ±10 %)")
