"""Starts jobs of several ranks for tests: oversubscribed, with a deadline, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from jaxrl_hpc.cli.doctor_checks import find_mpiexec, importable
from jaxrl_hpc.cli.doctor_mpi import _environment
from tests.telling import FILE

PATIENCE = 3000.0  # seconds until a job that never ends is killed, however busy the machine is
ROOT = Path(__file__).resolve().parents[2]
needs_mpi = pytest.mark.skipif(
    not (importable("mpi4jax") and importable("mpi4py") and find_mpiexec()), reason="MPI is not installed"
)


def command(ranks: int, *arguments: str) -> list[str]:
    """`python arguments` on so many ranks; without a launcher if it is one."""
    launcher = [str(find_mpiexec()), "-n", str(ranks)] if ranks > 1 else []
    return [*launcher, sys.executable, *arguments]


class Job(subprocess.Popen):
    """A running job; `told` is the file that its ranks tell their results to."""

    told: Path


def start(ranks: int, *arguments: str, **settings: str) -> Job:
    handle, told = tempfile.mkstemp(prefix="jaxrl_hpc_told_")
    os.close(handle)
    environment = _environment() | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", FILE: told} | settings
    job = Job(
        command(ranks, *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=environment,
        start_new_session=True,
    )
    job.told = Path(told)
    return job


def finish(process: Job, seconds: float) -> tuple[int, str]:
    """(exit code, output and what was told); the job is killed at the deadline, which fails the test."""
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        pytest.fail(f"no end within {seconds:.0f} s; output:\n{output[-3000:]}")
    told = process.told.read_text()
    process.told.unlink()
    return process.returncode, f"{output}\n{told}"


def run(ranks: int, *arguments: str, seconds: float = PATIENCE, **settings: str) -> tuple[int, str]:
    return finish(start(ranks, *arguments, **settings), seconds)


def results(output: str) -> list[dict]:
    """What the ranks told."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def cases(module: str, ranks: int, folder: Path, *texts: str) -> tuple[dict[str, list[dict]], str]:
    """(what rank 0 told by case, output) of a job that runs cases and must succeed."""
    status, output = run(ranks, "-m", module, str(folder), *texts)
    assert status == 0, output
    found: dict[str, list[dict]] = {}
    for result in results(output):
        if result["rank"] == 0:
            found.setdefault(result["case"], []).append(result)
    return found, output
