"""Which cases of a test belong to the quick tier (`make test`), the others being left to `make test-all`; and
which files are run first."""

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


JOBS = ("tests/slurm/", "tests/mpi/")  # few tests a file, and long ones
BETWEEN = 3  # other files after each of these, so that not all jobs run at the same time


def jobs_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """Files that start jobs early: at the end each of them would be one that all others wait for."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    jobs = [tests for name, tests in files.items() if name.startswith(JOBS)]
    others = [tests for name, tests in files.items() if not name.startswith(JOBS)]
    order: list[list[pytest.Item]] = []
    for number, tests in enumerate(jobs):
        order += [tests, *others[BETWEEN * number : BETWEEN * (number + 1)]]
    return [item for tests in (*order, *others[BETWEEN * len(jobs) :]) for item in tests]
