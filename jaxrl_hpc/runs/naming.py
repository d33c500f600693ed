"""Names for unnamed runs: cartpole_dqn, then cartpole_dqn-2, …

Only for a single process started by hand. The ranks of a job must agree on one folder, and a restarted batch
job must find its own.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runs import files

BATCH_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID", "COBALT_JOBID", "FLUX_JOB_ID")


def in_batch_job() -> bool:
    return any(os.environ.get(name) for name in BATCH_JOBS)


def candidates(parent: Path, name: str) -> Iterator[Path]:
    """runs/name, runs/name-2, …"""
    return (parent / (name if number == 1 else f"{name}-{number}") for number in itertools.count(1))


def claim_folder(parent: Path, name: str) -> Path:
    """Make the first free folder of this name. mkdir is atomic: two processes never get the same one."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for path in candidates(parent, name):
            try:
                path.mkdir()
                return path
            except FileExistsError:
                continue
    except OSError as error:
        raise UserError(f"cannot make a run directory in {parent}: {error.strerror}") from error
    raise AssertionError


def release_folder(path: Path) -> None:
    """Remove a claimed folder if no run has started in it."""
    if not path.is_dir() or path.is_symlink():
        return
    names = {entry.name for entry in path.iterdir()}
    if names <= {files.MARKER, "run.lock"}:
        for name in names:
            (path / name).unlink(missing_ok=True)
        path.rmdir()
