"""Two entries of a study against each other: by how much one is better, and whether that is shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from jaxrl_hpc.ops.comparison import Estimate, difference, probability_of_improvement


class Comparison(NamedTuple):
    """An entry, its control, and what differs between the two."""

    entry: str
    control: str
    about: str


def verdict(found: Estimate) -> str:
    if math.isnan(found.low):
        return "too few seeds for an interval"
    if found.low > 0:
        return "better"
    return "**worse**" if found.high < 0 else "no difference shown"


def text(found: Estimate, digits: int) -> str:
    if math.isnan(found.low):
        return f"{found.value:+.{digits}f}: {verdict(found)}"
    return f"{found.value:+.{digits}f} [{found.low:+.{digits}f}, {found.high:+.{digits}f}]: {verdict(found)}"


def chance(entry: Sequence[float], control: Sequence[float]) -> str:
    """Probability that a seed of the entry ends better than one of its control."""
    found = probability_of_improvement([(entry, control)])
    interval = "" if math.isnan(found.low) else f" [{100 * found.low:.0f}, {100 * found.high:.0f}]"
    return f"{100 * found.value:.0f} %{interval}"


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
            cells = [text(difference(x[one.entry], x[one.control]), digits) for x in (over_run, final)]
            cells += [chance(final[one.entry], final[one.control])]
            rows.append("| " + " | ".join([one.entry, one.control, one.about, *cells]) + " |")
    head = "| entry | against | they differ in | over the run | at the end | probability of improvement |"
    return [head, "|---" * 6 + "|", *rows] if rows else []
