"""Two entries of a study against each other: by how much one is better, and whether that is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxrl_hpc.ops.statistics import bootstrap_interval, interquartile_mean


class Comparison(NamedTuple):
    """An entry, its control, and what differs between the two."""

    entry: str
    control: str
    about: str


class Difference(NamedTuple):
    """Score of one set of seeds minus that of another, with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        if self.low > 0:
            return "better"
        return "**worse**" if self.high < 0 else "no difference shown"


def difference(entry: Sequence[float], control: Sequence[float]) -> Difference:
    """Of interquartile means; seeds of both are resampled apart from each other."""
    values, first = np.array([*entry, *control]), len(entry)

    def statistic(drawn: np.ndarray, axis: int) -> np.ndarray:
        one, other = np.split(drawn, [first], axis=axis)
        return interquartile_mean(one, axis) - interquartile_mean(other, axis)

    low, high = bootstrap_interval(values, statistic, strata=np.arange(len(values)) < first)
    return Difference(float(statistic(values, 0)), float(low), float(high))


def table(
    comparisons: Sequence[Comparison],
    over_run: dict[str, Sequence[float]],
    final: dict[str, Sequence[float]],
    digits: int,
) -> list[str]:
    """Lines of a page, of those comparisons whose two entries are there."""
    rows = []
    for one in comparisons:
        if one.entry in final and one.control in final:
            found = [difference(x[one.entry], x[one.control]) for x in (over_run, final)]
            cells = [
                f"{d.value:+.{digits}f} [{d.low:+.{digits}f}, {d.high:+.{digits}f}]: {d.verdict}"
                for d in found
            ]
            rows.append("| " + " | ".join([one.entry, one.control, one.about, *cells]) + " |")
    head = "| entry | against | they differ in | over the run | at the end |"
    return [head, "|---" * 5 + "|", *rows] if rows else []
