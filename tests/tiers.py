"""Which cases of a test belong to the quick tier (`make test`); the others are left to `make test-all`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def quick(values: Iterable[Any], chosen: Collection[Any]) -> list[Any]:
    """For parametrize: the chosen values stay as they are, the others are marked `full`."""
    values = list(values)
    assert all(value in values for value in chosen), f"{chosen} are not among {values}"
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    marks = [[] if value in chosen else [pytest.mark.full] for value in values]
    return [pytest.param(*row, marks=mark) for row, mark in zip(rows, marks, strict=True)]
