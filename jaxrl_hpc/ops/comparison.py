"""Comparisons of runs (NumPy, on the host): differences, probability of improvement, performance profiles.

Each takes the final scores of runs, one number per seed, and returns a value with a 95 % interval over seeds
(ops/statistics.py). After Agarwal et al., Deep Reinforcement Learning at the Edge of the Statistical
Precipice, 2021. With fewer than `FEW` seeds on either side there is no interval: its bounds are NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from jaxrl_hpc.ops.statistics import FEW, bootstrap_interval, interquartile_mean

Figures: TypeAlias = Sequence[float] | np.ndarray


class Estimate(NamedTuple):
    """A figure and its 95 % interval; NaN bounds where seeds are too few for one."""

    value: float
    low: float
    high: float


class Profile(NamedTuple):
    """Shares of runs above thresholds."""

    thresholds: np.ndarray  # [T]
    share: np.ndarray  # [T]
    low: np.ndarray  # [T]; NaN with few runs
    high: np.ndarray  # [T]


def difference(first: Figures, second: Figures) -> Estimate:
    """IQM of one set of seeds minus that of another (means, if either set has few seeds)."""
    values, size = np.array([*first, *second], np.float64), len(first)
    few = min(size, len(second)) < FEW

    def statistic(drawn: np.ndarray, axis: int) -> np.ndarray:
        one, other = np.split(drawn, [size], axis=axis)
        if few:
            return np.asarray(one.mean(axis) - other.mean(axis))
        return np.asarray(interquartile_mean(one, axis) - interquartile_mean(other, axis))

    if few:
        return Estimate(float(statistic(values, 0)), np.nan, np.nan)
    low, high = bootstrap_interval(values, statistic, strata=np.arange(len(values)) < size)
    return Estimate(float(statistic(values, 0)), float(low), float(high))


def probability_of_improvement(pairs: Sequence[tuple[Figures, Figures]]) -> Estimate:
    """How likely a seed of the first is better than one of the second, averaged over environments.

    Args:
      pairs: (figures of the first, figures of the second) of each environment; ties count half.
    """
    if not pairs or any(not len(one) or not len(other) for one, other in pairs):
        raise ValueError("each environment needs at least one run of both")
    sizes = [len(part) for pair in pairs for part in pair]
    values = np.concatenate([np.asarray(part, np.float64) for pair in pairs for part in pair])
    ends = np.cumsum(sizes)[:-1]

    def statistic(drawn: np.ndarray, axis: int) -> np.ndarray:
        parts = np.split(np.moveaxis(drawn, axis, -1), ends, axis=-1)
        shares = [
            (np.sign(one[..., :, None] - other[..., None, :]).mean((-1, -2)) + 1) / 2
            for one, other in zip(parts[::2], parts[1::2], strict=True)
        ]
        return np.asarray(np.mean(shares, axis=0))

    value = float(statistic(values, 0))
    if min(sizes) < FEW:
        return Estimate(value, np.nan, np.nan)
    low, high = bootstrap_interval(values, statistic, strata=np.repeat(np.arange(len(sizes)), sizes))
    return Estimate(value, float(low), float(high))


def performance_profile(
    values: np.ndarray, thresholds: np.ndarray, strata: np.ndarray | None = None
) -> Profile:
    """Share of runs [R] that score more than each threshold [T]; drawn within strata (environments)."""
    values, thresholds = np.asarray(values, np.float64), np.asarray(thresholds, np.float64)
    above = (values[:, None] > thresholds).astype(np.float64)
    share: np.ndarray = above.mean(0)
    if len(values) < FEW:
        return Profile(thresholds, share, np.full_like(share, np.nan), np.full_like(share, np.nan))
    return Profile(thresholds, share, *bootstrap_interval(above, np.mean, strata=strata))


def normalised(figures: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Figures of several sets of runs in one environment, so that 0 is the worst run and 1 the best."""
    together = np.concatenate([np.asarray(part, np.float64) for part in figures])
    low, high = float(together.min()), float(together.max())
    return [(np.asarray(part, np.float64) - low) / ((high - low) or 1.0) for part in figures]
