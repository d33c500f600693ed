"""Running mean and variance from sums that can be added over shards.

Sums are taken around the current mean, which every shard has, so that they can be added like plain sums
without cancellation (Chan et al. 1983):

    n = number,  s = sum (x - mean),  q = sum (x - mean)^2
    mean' = mean + s / N',  M2' = M2 + q - s^2 / N',  N' = N + n
"""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax.numpy as jnp

from jaxrl_hpc.types import Array


class RunningStats(NamedTuple):
    """Statistics so far."""

    number: Array  # [] float32
    mean: Array  # […]
    m2: Array  # […] sum of squared deviations


class Sums(NamedTuple):
    """New data; the sum of two Sums is the Sums of both."""

    number: Array  # [] float32
    deviation: Array  # […] sum of x - mean
    square: Array  # […] sum of (x - mean)^2


def empty(shape: tuple[int, ...]) -> RunningStats:
    return RunningStats(jnp.float32(0), jnp.zeros(shape), jnp.zeros(shape))


def sums(statistics: RunningStats, values: Array) -> Sums:
    """Sums over the leading axes of values [..., *shape]."""
    shape = statistics.mean.shape
    chex.assert_shape(values, (..., *shape))
    leading = tuple(range(values.ndim - len(shape)))
    deviation = values.astype(jnp.float32) - statistics.mean
    number = jnp.float32(values.size // max(statistics.mean.size, 1))
    return Sums(number, deviation.sum(axis=leading), (deviation**2).sum(axis=leading))


def merge(statistics: RunningStats, new: Sums) -> RunningStats:
    number = statistics.number + new.number
    shift = new.deviation / jnp.maximum(number, 1.0)
    m2 = statistics.m2 + new.square - new.deviation * shift
    return RunningStats(number, statistics.mean + shift, jnp.maximum(m2, 0.0))


def variance(statistics: RunningStats) -> Array:
    """Variance of all values so far; 1 before there are two."""
    return jnp.where(statistics.number > 1, statistics.m2 / jnp.maximum(statistics.number, 1.0), 1.0)
