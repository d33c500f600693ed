"""The values that axes take.

Each random axis has a stream of its own, made from its name, so that its k-th draw depends neither on
other axes nor on how many draws there are: a sweep can grow without losing what was done.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxrl_hpc.sweeps.spec import Axis, SweepSpec

DIGITS = 6  # significant digits of made-up values: enough, and readable in tables and file names


def rounded(value: float, whole: bool) -> float | int:
    return round(float(value)) if whole else float(f"{float(value):.{DIGITS}g}")


def listed(axis: Axis, whole: bool) -> list[Any]:
    """All values of an axis that is not drawn."""
    if axis.values is not None:
        return list(axis.values)
    assert axis.grid is not None and axis.points is not None
    space = np.geomspace if axis.log else np.linspace
    return [rounded(value, whole) for value in space(*axis.grid, axis.points)]


def drawn(axis: Axis, name: str, samples: int, seed: int, whole: bool) -> list[Any]:
    """`samples` draws of a random axis."""
    uniform = np.random.default_rng([seed, zlib.crc32(name.encode())]).random(samples)
    if axis.choice is not None:
        return [axis.choice[int(u * len(axis.choice))] for u in uniform]
    if axis.log_uniform is not None:
        low, high = np.log(axis.log_uniform)
        return [rounded(np.exp(low + u * (high - low)), whole) for u in uniform]
    assert axis.random is not None
    low, high = axis.random
    if whole:  # both ends as likely as what lies between
        return [min(int(low + u * (high - low + 1)), int(high)) for u in uniform]
    return [rounded(low + u * (high - low), whole) for u in uniform]


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
