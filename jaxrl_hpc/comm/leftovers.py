"""Shared memory that killed jobs left behind: MPICH's segments in /dev/shm keep their memory until a reboot.

Only segments of this user that no process maps, and that are too old to belong to a job that is just
starting, are removed. Pure Python, so that scripts on login nodes can use it.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import NamedTuple

FOLDER = Path("/dev/shm")
SEGMENT = "mpich_shm_*"
MIN_AGE_SECONDS = 30.0  # a job maps its segments within moments of making them
MAPPED = re.compile(r"^\S+ \S+ \S+ \S+ (\d+)", re.MULTILINE)  # of a line of /proc/PID/maps: the inode


class Leftover(NamedTuple):
    """An unused segment."""

    path: Path
    bytes: int


def leftovers(
    folder: Path = FOLDER, min_age: float = MIN_AGE_SECONDS, proc: Path = Path("/proc")
) -> list[Leftover]:
    """This user's segments that no process maps; none if that is unknown."""
    found: dict[int, Leftover] = {}
    for path in sorted(folder.glob(SEGMENT)) if folder.is_dir() else ():
        try:
            status = path.lstat()
        except OSError:  # removed by its job
            continue
        old = time.time() - status.st_mtime >= min_age
        if old and status.st_uid == os.getuid() and path.is_file() and not path.is_symlink():
            found[status.st_ino] = Leftover(path, status.st_size)
    mapped = _mapped(proc) if found else set()
    if mapped is None:
        return []
    return [leftover for inode, leftover in found.items() if inode not in mapped]


def remove_leftovers(
    folder: Path = FOLDER, min_age: float = MIN_AGE_SECONDS, proc: Path = Path("/proc")
) -> list[Leftover]:
    """Remove them; what was removed."""
    removed = []
    for leftover in leftovers(folder, min_age, proc):
        try:
            leftover.path.unlink()
        except OSError:  # another cleaner was faster
            continue
        removed.append(leftover)
    return removed


def _mapped(proc: Path) -> set[int] | None:
    """Inodes of all files that processes map; None if no process can be looked at.

    Not their devices: file systems laid over others report another one there.
    """
    mapped: set[int] = set()
    looked = False
    for process in proc.glob("[0-9]*"):
        try:
            text = (process / "maps").read_text(errors="replace")
        except OSError:  # it has ended, or is another user's or privileged: no rank of this user's jobs
            continue
        looked = True
        mapped |= set(map(int, MAPPED.findall(text)))
    return mapped if looked else None


def describe(found: list[Leftover]) -> str:
    """'3 segments of 6.4 MB'."""
    plural = "s" if len(found) != 1 else ""
    return f"{len(found)} segment{plural} of {sum(each.bytes for each in found) / 1e6:,.1f} MB"
