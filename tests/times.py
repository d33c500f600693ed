"""Where the time of the tiers goes, as a table, from what `make test` and `make test-all` leave behind:

    python -m tests.times .pytest_cache/test.xml .pytest_cache/test-all.xml

A column per file: seconds of all tests of a folder, set-up included, and how many they are. Processes side by
side share these seconds.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

GROUPS = {  # folder below tests/ -> group; what is not named is in the last one
    "agents": "agents",
    "workflows": "workflows in one process",
    "mpi": "jobs of MPI ranks",
    "comm": "jobs of MPI ranks",
    "slurm": "jobs of Slurm",
    "envs": "environments",
    "cli": "commands, Python API, configs",
    "api": "commands, Python API, configs",
    "config": "commands, Python API, configs",
    "runtime": "runs, checkpoints, sweeps",
    "checkpoint": "runs, checkpoints, sweeps",
    "runs": "runs, checkpoints, sweeps",
    "sweeps": "runs, checkpoints, sweeps",
    "replay": "replay, operations, networks",
    "ops": "replay, operations, networks",
    "networks": "replay, operations, networks",
}
REST = "the rest"


def seconds(path: Path) -> dict[str, tuple[float, int]]:
    """Group -> (seconds, number of tests)."""
    found: dict[str, list[float]] = defaultdict(list)
    for case in ElementTree.parse(path).iter("testcase"):
        folder = case.attrib["classname"].split(".")[1]
        found[GROUPS.get(folder, REST)].append(float(case.attrib["time"]))
    return {group: (sum(times), len(times)) for group, times in found.items()}


def table(paths: list[Path]) -> str:
    columns = [seconds(path) for path in paths]
    names = [*dict.fromkeys(GROUPS.values()), REST]
    lines = [["tests", *(path.stem for path in paths)], ["---", *["---:"] * len(paths)]]
    for name in names:
        found = [column.get(name, (0.0, 0)) for column in columns]
        lines.append([name, *(f"{time:.0f} s ({number})" for time, number in found)])
    totals = [[sum(part) for part in zip(*column.values(), strict=True)] for column in columns]
    lines.append(["all", *(f"{time:.0f} s ({number:.0f})" for time, number in totals)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    print(table([Path(name) for name in sys.argv[1:]]))
