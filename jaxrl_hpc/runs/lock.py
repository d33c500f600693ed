"""One writer per run directory.

The kernel's file lock decides among processes of one machine, and is released when its holder dies. Network
file systems do not always support such locks, so the holder also writes its host, process and job into the
file and touches it periodically: a lock from another host is valid while it is fresh, unless it belongs to an
earlier start of the same batch job.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from jaxrl_hpc.errors import UserError, file_named

HEARTBEAT_SECONDS = 15.0
STALE_SECONDS = 90.0


def _batch_job() -> str | None:
    return os.environ.get("SLURM_JOB_ID") or os.environ.get("PBS_JOBID")


class RunLock:
    """`with RunLock(path): …`; raises UserError when somebody else holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None
        self._stop = threading.Event()
        self._heart: threading.Thread | None = None

    def __enter__(self) -> RunLock:
        try:
            # a link is not followed: its target would be truncated
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            what = "it is a link" if self.path.is_symlink() else error.strerror
            raise UserError(f"cannot lock {self.path}: {what}") from error
        try:
            with file_named(self.path):
                self._take(handle)
        except BaseException:
            os.close(handle)
            raise
        self._handle = handle
        self._stop.clear()
        self._heart = threading.Thread(target=self._beat, daemon=True)
        self._heart.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._handle is not None and self._heart is not None
        self._stop.set()
        self._heart.join()
        os.ftruncate(self._handle, 0)  # not deleted: another process may have opened it to wait for us
        os.close(self._handle)
        self._handle = None

    def _take(self, handle: int) -> None:
        free = True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            free = False
        except OSError:
            pass  # a file system without locks: the heartbeat decides
        holder = _parse(os.pread(handle, 4096, 0))
        age = time.time() - os.fstat(handle).st_mtime
        elsewhere = holder.get("host") not in (None, socket.gethostname())
        same_job = holder.get("job") is not None and holder.get("job") == _batch_job()
        if not free or (elsewhere and age < STALE_SECONDS and not same_job):
            who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
            hint = f"; if it is gone, wait {STALE_SECONDS:.0f} s or delete {self.path}" if free else ""
            raise UserError(f"{self.path.parent} is being written by {who}{hint}")
        record = {"host": socket.gethostname(), "pid": os.getpid(), "job": _batch_job()}
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(record).encode(), 0)
        os.fsync(handle)

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            assert self._handle is not None
            os.utime(self._handle)


def holder_of(path: Path) -> str | None:
    """Description of the holder of a lock; None if there is none, or it is dead."""
    try:
        holder = _parse(path.read_bytes())
        age = time.time() - path.stat().st_mtime
    except OSError:
        return None
    host, pid = holder.get("host"), holder.get("pid")
    if not isinstance(pid, int) or not 0 < pid < 2**31:
        return None  # a damaged file
    alive = psutil.pid_exists(pid) if host == socket.gethostname() else age < STALE_SECONDS
    job = f", job {holder['job']}" if holder.get("job") else ""
    return f"process {pid} on {host}{job}" if holder and alive else None


def _parse(content: bytes) -> dict[str, Any]:
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}
