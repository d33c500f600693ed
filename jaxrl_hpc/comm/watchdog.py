"""Detects a rank that makes no progress, and ends the job with a message that names it.

A collective cannot time out, and a stopped process (SIGSTOP, a node that hangs) reports nothing. So a thread
of every rank periodically writes a small file with the rank's host, process, phase and chunk; the
thread of the rank before it watches that file. Three things end the job:

- the watched file has not changed for `deadline` seconds: that rank is no longer running;
- a connection reports that a rank has died (`hub.py`), where there is one: at once;
- this rank is in a chunk and has made no progress for `deadline` seconds, though all ranks are running. This
  verdict comes a few polls later, so that the stalled rank is named, not those that wait for it. Outside of
  chunks (compiling, starting, a final evaluation) it has twelve times as long, and an hour at least.

It relies on changes only, never on clocks of other machines. Time during which the watching process itself
was suspended (scontrol suspend, SIGSTOP of all ranks) does not count. The files also map a process to its
rank, for a launcher (scripts/mpi_restart.py).
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from jaxrl_hpc.comm.ranks import Ranks

log = logging.getLogger(__name__)
EXIT_STALLED = 76
LOOKS_OF_GRACE = 3  # a stale file is detected up to two polls late
LONG_SECONDS, LONG_FACTOR = 3600.0, 12  # time limit of phases that are not armed
FRESH_SECONDS = 0.5  # an older file is rewritten when there is progress


class Watchdog:
    """A context manager. Without other ranks, or with deadline 0, it only records phases."""

    def __init__(self, ranks: Ranks, folder: Path, deadline: float) -> None:
        self.ranks, self.folder, self.deadline = ranks, folder, deadline
        self.interval = max(0.1, min(deadline / 8, 10.0)) if deadline else 10.0
        self._phase, self._chunk, self._armed = "starting", 0, False
        self._progress = time.monotonic()
        self._count = 0
        self._written = 0.0
        self._mute = False  # has reported that it cannot write
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Watchdog:
        if self.ranks.size > 1:
            self.ranks.first_does(self._clear)
            self._beat()
            self.ranks.barrier()  # all files are there
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
            self.ranks.on_gone = self._gone
        return self

    def _gone(self, rank: int, what: str) -> None:
        self._end(f"{self._describe(rank)} {what}")

    def __exit__(self, error: object, *_: object) -> None:
        if self._thread is not None:
            if error is None:  # else a dead rank may be the reason, and should be named
                self.ranks.on_gone = None
            self._stop.set()
            self._thread.join()

    def at(self, phase: str, chunk: int, armed: bool = True, often: bool = False) -> None:
        """Record that the run has reached this phase. Unarmed phases (compiling, a final evaluation) may take
        long.

        Phases that change many times a second pass `often`: they do not write a file each time.
        """
        changed = (phase != self._phase and not often) or time.monotonic() - self._written > FRESH_SECONDS
        self._phase, self._chunk, self._armed = phase, chunk, armed
        self._progress = time.monotonic()
        if self._thread is not None and changed:
            self._beat()

    def _clear(self) -> None:
        """Delete files of an earlier job."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.glob("*.json"):
            if path.stem.isdigit():
                path.unlink(missing_ok=True)

    def _beat(self) -> None:
        with self._lock:
            self._count += 1
            self._written = time.monotonic()
            self._write()

    def _write(self) -> None:
        record = {
            "rank": self.ranks.rank,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "phase": self._phase,
            "chunk": self._chunk,
            "count": self._count,
        }
        temporary = self.folder / f"{self.ranks.rank}.{os.getpid()}.tmp"
        try:
            temporary.write_text(json.dumps(record))
            os.replace(temporary, self.folder / f"{self.ranks.rank}.json")
        except OSError as error:  # a temporarily full disk must not end the watching thread
            if not self._mute:
                log.warning(
                    "rank %d cannot write its heartbeat (%s); other ranks may consider it dead",
                    self.ranks.rank,
                    error,
                )
            self._mute = True

    def _watch(self) -> None:
        neighbour = (self.ranks.rank + 1) % self.ranks.size
        seen, since = -1, time.monotonic()
        looked = since
        while not self._stop.wait(self.interval):
            self._beat()
            if not self.deadline:
                continue
            now = time.monotonic()
            asleep, looked = now - looked - self.interval, now
            if asleep > self.deadline / 2:  # this process itself was suspended, and perhaps the whole job
                since, self._progress = since + asleep, self._progress + asleep
            count = self._read(neighbour).get("count", -1)
            if count != seen:
                seen, since = count, now
            if now - since > self.deadline:
                self._end(f"{self._describe(neighbour)} has not been heard from for {now - since:.0f} s")
            limit = self.deadline if self._armed else max(LONG_FACTOR * self.deadline, LONG_SECONDS)
            if now - self._progress > limit + LOOKS_OF_GRACE * self.interval:
                others = "; ".join(self._describe(r) for r in range(self.ranks.size) if r != self.ranks.rank)
                self._end(f"no progress for {now - self._progress:.0f} s, while {others}")

    def _read(self, rank: int) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.folder / f"{rank}.json").read_text())
            return found
        except (OSError, ValueError):
            return {}

    def _describe(self, rank: int) -> str:
        record = self._read(rank)
        where = f"process {record.get('pid', '?')} on {record.get('host', '?')}"
        return f"rank {rank} ({where}, last {record.get('phase', '?')}, chunk {record.get('chunk', '?')})"

    def _end(self, finding: str) -> None:
        print(
            f"watchdog of rank {self.ranks.rank} ({self._phase}, chunk {self._chunk}): {finding}; "
            "the job ends here, and its newest checkpoint can be resumed",
            file=sys.stderr,
            flush=True,
        )
        threading.Timer(5.0, os._exit, (EXIT_STALLED,)).start()  # should Abort itself get stuck
        self.ranks.abort(EXIT_STALLED)
