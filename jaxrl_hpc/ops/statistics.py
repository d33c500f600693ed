"""Statistics over runs (NumPy, on the host): scores, interquartile mean, bootstrap intervals, mean curves.

A run's own figure is its mean over episodes. Over `FEW` runs or more the score is their interquartile mean
with a bootstrap interval; over fewer it is their mean with their range, since a quarter of them is no run and
resamples of so few say nothing.

The interquartile mean (IQM) drops the lowest and the highest quarter of the runs and averages the
rest: as robust as the median, with a smaller error. Intervals are percentile bootstraps over runs,
drawn within each stratum (task) when several are pooled.
Agarwal et al., Deep Reinforcement Learning at the Edge of the Statistical Precipice, 2021.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

FEW = 5  # runs from which on an interquartile mean and its interval mean something
RESAMPLES = 2000
CURVE_POINTS = 200
_CHUNK = 2**22  # values resampled at a time


class Score(NamedTuple):
    """Of runs together: IQM and 95 % interval, or mean and range if they are few."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Curve(NamedTuple):
    """Scores of runs along a common axis."""

    x: np.ndarray  # [P]
    value: np.ndarray  # [P]
    low: np.ndarray  # [P]
    high: np.ndarray  # [P]


def interquartile_mean(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """Mean of the middle half along an axis: ⌊n/4⌋ values are cut at each end."""
    values = np.asarray(values, np.float64)
    runs = values.shape[axis]
    if runs == 0:
        raise ValueError("the interquartile mean of no values is not defined")
    cut = runs // 4
    ordered = np.moveaxis(np.sort(values, axis=axis), axis, 0)
    middle: np.ndarray = ordered[cut : runs - cut].mean(0)
    return middle


def score(values: np.ndarray) -> Score:
    """The score of runs [R, …]."""
    values = np.asarray(values, np.float64)
    if len(values) < FEW:
        return Score(values.mean(0), values.min(0), values.max(0))
    return Score(interquartile_mean(values), *bootstrap_interval(values))


def score_text(runs: int, what: str = "seed") -> str:
    """What a score of so many runs is: "IQM, 95 % interval over 8 seeds"."""
    if runs == 1:
        return f"one {what}"
    return f"IQM, 95 % interval over {runs} {what}s" if runs >= FEW else f"mean, range of {runs} {what}s"


def bootstrap_interval(
    values: np.ndarray,
    statistic: Callable[..., np.ndarray] = interquartile_mean,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
    strata: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile bootstrap over runs: values [R, …] -> (low […], high […]).

    Runs are drawn as a whole, so the points of a curve stay together. `strata` [R] labels groups
    that keep their sizes. `statistic(values, axis)` reduces the axis of runs. The fixed seed makes the
    interval a function of the values.
    """
    values = np.asarray(values, np.float64)
    if values.ndim == 0 or values.shape[0] == 0:
        raise ValueError("a bootstrap needs at least one run")
    index = _resampled_runs(values.shape[0], resamples, seed, strata)  # [S, R]
    flat = values.reshape(values.shape[0], -1)  # [R, P]
    columns = max(1, _CHUNK // index.size)
    draws = [
        statistic(flat[:, first : first + columns][index], axis=1)  # [S, R, columns] -> [S, columns]
        for first in range(0, flat.shape[1], columns)
    ]
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(np.concatenate(draws, axis=1), [tail, 100 - tail], axis=0)
    return low.reshape(values.shape[1:]), high.reshape(values.shape[1:])


def _resampled_runs(runs: int, resamples: int, seed: int, strata: np.ndarray | None) -> np.ndarray:
    """Numbers of the drawn runs, [resamples, runs]."""
    generator = np.random.default_rng(seed)
    labels = np.zeros(runs) if strata is None else np.asarray(strata)
    if labels.shape != (runs,):
        raise ValueError(f"strata must have one label for each of {runs} runs, got shape {labels.shape}")
    index = np.empty((resamples, runs), np.int64)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        index[:, members] = generator.choice(members, (resamples, members.size))
    return index


def common_grid(axes: Sequence[np.ndarray], points: int = CURVE_POINTS) -> np.ndarray:
    """The shared axis if all are the same, else evenly spaced points where all runs have data."""
    first = np.asarray(axes[0], np.float64)
    if all(np.array_equal(first, axis) for axis in axes):
        return first
    start, end = max(axis[0] for axis in axes), min(axis[-1] for axis in axes)
    return np.linspace(start, end, points) if end > start else np.asarray([end], np.float64)


def aggregate_curves(
    axes: Sequence[np.ndarray], values: Sequence[np.ndarray], grid: np.ndarray | None = None
) -> Curve:
    """Scores over runs. Run r has values[r] [K_r] at increasing axes[r] [K_r]; linear in between."""
    if (
        not axes
        or len(axes) != len(values)
        or any(len(a) != len(v) or not len(a) for a, v in zip(axes, values, strict=True))
    ):
        raise ValueError("curves need one axis per run, as long as its values and not empty")
    x = common_grid(axes) if grid is None else np.asarray(grid, np.float64)
    table = np.stack([np.interp(x, axis, value) for axis, value in zip(axes, values, strict=True)])  # [R, P]
    return Curve(x, *score(table))
