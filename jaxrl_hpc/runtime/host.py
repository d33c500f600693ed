"""Resources of this host, and whether a config exceeds them. Nothing here needs JAX."""

from __future__ import annotations

import os
from itertools import pairwise
from math import prod
from pathlib import Path

import psutil

from jaxrl_hpc.config.files import Config
from jaxrl_hpc.errors import UserError

CGROUPS = Path("/sys/fs/cgroup")
FLOAT = 4  # bytes
ACCELERATORS = 4  # how much more they may have


def available_cores() -> int:
    """Cores that this process may use: affinity, and the share that Slurm gave."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    given = os.environ.get("SLURM_CPUS_PER_TASK", "")
    return min(cores, int(given)) if given.isdigit() and int(given) > 0 else cores


def available_memory() -> int:
    """Bytes that this process can still allocate: free memory, or the cgroup's limit if lower."""
    free = psutil.virtual_memory().available
    for path in memory_limit_files():
        try:
            limit = int(path.read_text())
        except (OSError, ValueError):  # not there, or "max"
            continue
        free = min(free, limit - psutil.Process().memory_info().rss)
    return free


def memory_limit_files(groups: Path = Path("/proc/self/cgroup"), root: Path = CGROUPS) -> list[Path]:
    """Files of this process's control group (Slurm makes one per job and step) and of all above it."""
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        lines = []
    found = []
    for line in lines:
        _, kinds, name = line.split(":", 2)
        if kinds in ("", "memory"):  # version 2 and 1
            base, file = (root, "memory.max") if not kinds else (root / "memory", "memory.limit_in_bytes")
            inner = base / name.strip("/")
            found += [folder / file for folder in (inner, *inner.parents) if folder.is_relative_to(base)]
    return found


def check_least_memory(config: Config) -> None:
    """Refuse early what cannot fit into one process in any environment, even if accelerators have several
    times the memory of this host; `memory.check_memory` uses all shapes and devices.

    A stored step takes at least an observation, an action, a reward and how it ended; a weight is kept with
    two moments of Adam.
    """
    if config.workflow.uses_ranks:  # every process holds a part
        return
    seeds, widths = config.run.seeds, config.agent.hidden_widths
    needs = {
        f"hidden layers of {', '.join(f'{width:,}' for width in widths)} units": 3
        * sum(map(prod, pairwise(widths)))
    }
    if config.replay is not None:
        needs[f"replay.capacity = {config.replay.capacity:,}"] = 4 * config.replay.capacity
    free = available_memory()
    for what, numbers in needs.items():
        least = seeds * numbers * FLOAT
        if least > ACCELERATORS * free:
            each = f" for each of run.seeds = {seeds:,}" if seeds > 1 else ""
            raise UserError(
                f"{what}{each}: this takes at least {least / 2**30:,.1f} GiB, but {free / 2**30:.1f} GiB are "
                "free: lower it"
            )
