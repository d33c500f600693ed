"""Statistics over runs (NumPy, on the host): scores, interquartile mean, bootstrap intervals, mean curves.

A run's result is its mean over episodes. The score of `FEW` runs or more is their interquartile mean (IQM)
with a 95 % interval. The score of fewer runs is their mean with their range, because no interval method is
reliable for so few runs.

The IQM drops the lowest and the highest quarter of the runs and averages the rest: as robust as the median,
with a smaller error (Agarwal et al., Deep Reinforcement Learning at the Edge of the Statistical Precipice,
2021). Intervals are expanded percentile bootstraps (Hesterberg, What Teachers Should Know About the
Bootstrap, 2015), drawn within each stratum (environment) when several are pooled. A plain percentile
bootstrap of few runs is too narrow; docs/results/intervals.md has the measured coverage of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

FEW = 5  # runs needed for an interquartile mean and its interval
RESAMPLES = 2000
CURVE_POINTS = 200
_CHUNK = 2**22  # values resampled at a time


class Score(NamedTuple):
    """Score of several runs: IQM and 95 % interval, or mean and range of few runs."""

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


def score(values: np.ndarray, strata: np.ndarray | None = None) -> Score:
    """The score of runs [R, …]; `strata` [R] labels pooled environments, none of which may be few."""
    values = np.asarray(values, np.float64)
    smallest = len(values) if strata is None else int(np.unique(strata, return_counts=True)[1].min())
    if smallest < FEW:
        return Score(values.mean(0), values.min(0), values.max(0))
    return Score(interquartile_mean(values), *bootstrap_interval(values, strata=strata))


def score_text(runs: int, what: str = "seed") -> str:
    """Describes the score of this number of runs: "IQM, 95 % interval over 8 seeds"."""
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
    expanded: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Bootstrap over runs: values [R, …] -> (low […], high […]).

    Args:
      values: runs first. They are drawn as a whole, so the points of a curve stay together.
      statistic: `statistic(values, axis)` reduces the axis of runs.
      confidence: share of intervals that should hold the truth.
      resamples: how many.
      seed: fixed, so that the interval is a function of the values.
      strata: [R] labels of groups that keep their sizes.
      expanded: widen the percentiles for few runs; False gives the plain percentile bootstrap.
    """
    values = np.asarray(values, np.float64)
    if values.ndim == 0 or values.shape[0] == 0:
        raise ValueError("a bootstrap needs at least one run")
    labels = np.zeros(len(values), np.int64) if strata is None else np.asarray(strata)
    flat = values.reshape(values.shape[0], -1)  # [R, P]
    columns = max(1, _CHUNK // (resamples * len(flat)))
    blocks = []
    for index in _resampled_runs(labels, len(flat), resamples, seed):  # [S, R]
        draws = [
            statistic(flat[:, first : first + columns][index], axis=1)  # [S, R, columns] -> [S, columns]
            for first in range(0, flat.shape[1], columns)
        ]
        blocks.append(np.concatenate(draws, axis=1))
    tail = expanded_tail(labels, confidence) if expanded else (1 - confidence) / 2
    low, high = np.percentile(np.concatenate(blocks), [100 * tail, 100 * (1 - tail)], axis=0)
    return low.reshape(values.shape[1:]), high.reshape(values.shape[1:])


def expanded_tail(labels: np.ndarray, confidence: float = 0.95) -> float:
    """The percentile at which an interval ends, further out than (1 - confidence) / 2 for few runs.

    Resamples vary less than new runs by n - 1 to n, and a variance that is itself an estimate asks for a
    t instead of a normal quantile. With strata the smallest gives n; each takes one degree of freedom.
    """
    _, sizes = np.unique(labels, return_counts=True)
    smallest, degrees = int(sizes.min()), int(sizes.sum()) - len(sizes)
    if smallest < 2:
        return (1 - confidence) / 2
    reach = math.sqrt(smallest / (smallest - 1)) * t_quantile(degrees, confidence)
    return 0.5 * math.erfc(reach / math.sqrt(2))


def t_quantile(degrees: int, confidence: float = 0.95) -> float:
    """How many standard errors a two-sided t interval reaches: 4.303 for two degrees of freedom."""
    low, high = 0.0, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_inside(middle, degrees) < confidence else (low, middle)
    return (low + high) / 2


def _t_inside(bound: float, degrees: int) -> float:
    """P(|t| < bound) for whole degrees of freedom: a finite sum (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan2(bound, math.sqrt(degrees))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = degrees % 2
    term, total = cosine if odd else 1.0, 0.0
    for k in range(1, degrees // 2 + 1):
        total += term
        term *= cosine**2 * ((2 * k) / (2 * k + 1) if odd else (2 * k - 1) / (2 * k))
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def _resampled_runs(labels: np.ndarray, runs: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Numbers of the drawn runs, [resamples, runs], in blocks of resamples where they are many: whole, a
    million episodes would take 16 GB. The draws do not depend on the blocks."""
    if labels.shape != (runs,):
        raise ValueError(f"strata must have one label for each of {runs} runs, got shape {labels.shape}")
    generator = np.random.default_rng(seed)
    groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    if len(groups) == 1:
        for number in block_sizes(resamples, runs):
            yield generator.choice(groups[0], (number, runs))
        return
    index = np.empty((resamples, runs), np.int64)
    for members in groups:
        index[:, members] = generator.choice(members, (resamples, members.size))
    yield index


def block_sizes(resamples: int, runs: int) -> list[int]:
    """Numbers of resamples in blocks of about `_CHUNK` values."""
    most = max(1, _CHUNK // runs)
    return [min(most, resamples - first) for first in range(0, resamples, most)]


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
