"""Values of axes.

Each random axis has its own stream, derived from its name, so that its k-th draw depends neither on other
axes nor on the number of draws: a sweep can grow without losing finished trials.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxrl_hpc.sweeps.spec import Axis, SweepSpec

DIGITS = 4  # digits of generated values, for readable tables; relative to the range where that is narrow


def _spread(axis: Axis) -> tuple[tuple[float, float], bool]:
    """Bounds, and whether values are spread evenly in the logarithm."""
    bounds = axis.grid or axis.random or axis.log_uniform
    assert bounds is not None
    return bounds, axis.log or axis.log_uniform is not None


def place(axis: Axis, share: float, whole: bool) -> float | int:
    """The value at a share (0 to 1) of the way from the lower bound to the upper one."""
    (low, high), logarithmic = _spread(axis)
    if logarithmic:
        value = low * (high / low) ** share
        return round(value) if whole else float(f"{value:.{DIGITS}g}")
    if whole:
        return round(low + share * (high - low))
    decimals = DIGITS - 1 - math.floor(math.log10(high - low))
    return round(low + share * (high - low), decimals)


def listed(axis: Axis, whole: bool) -> list[Any]:
    """All values of an axis that is not drawn."""
    if axis.values is not None:
        return list(axis.values)
    assert axis.points is not None
    return [place(axis, i / (axis.points - 1), whole) for i in range(axis.points)]


def drawn(axis: Axis, name: str, samples: int, seed: int, whole: bool) -> list[Any]:
    """`samples` draws of a random axis."""
    uniform = np.random.default_rng([seed, zlib.crc32(name.encode())]).random(samples)
    if axis.choice is not None:
        return [axis.choice[int(u * len(axis.choice))] for u in uniform]
    if axis.random is not None and whole:  # both ends as likely as the values between them
        low, high = axis.random
        return [int(low + u * (high - low + 1)) for u in uniform]
    return [place(axis, float(u), whole) for u in uniform]


def count(spec: SweepSpec) -> int:
    """Combinations of axis values, counted without making them."""
    listed_values = (len(a.values) if a.values else a.points or 1 for a in spec.axes.values() if not a.drawn)
    return math.prod(listed_values) * (spec.samples or 1)


def combinations(spec: SweepSpec, whole: set[str]) -> Iterator[dict[str, Any]]:
    """Axis values of every combination; `whole` names the axes of whole numbers."""
    fixed = {n: listed(axis, n in whole) for n, axis in spec.axes.items() if not axis.drawn}
    random = {
        n: drawn(axis, n, spec.samples or 0, spec.draw_seed, n in whole)
        for n, axis in spec.axes.items()
        if axis.drawn
    }
    draws = [dict(zip(random, values, strict=True)) for values in zip(*random.values(), strict=True)] or [{}]
    for values in itertools.product(*fixed.values()):
        for draw in draws:
            together = dict(zip(fixed, values, strict=True)) | draw
            yield {name: together[name] for name in spec.axes}
