"""Profile of a run: seconds per phase as metrics, and a trace for Perfetto.

    trace = Trace(rank=0, active=True)
    with trace.span("saving"): …
    trace.take()                     # {"time/saving": 0.3}: seconds since the last call
    trace.write(run_dir)             # every rank, at the end
    merge(run_dir)                   # rank 0, when all have written: trace.json

Times in the trace are seconds of training, so those of a resumed run follow those before it. Every rank is a
process of its own in the picture. Open trace.json at https://ui.perfetto.dev or in chrome://tracing.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxrl_hpc.checkpoint.blocks import write_atomically
from jaxrl_hpc.metrics.parquet import CLOCK_PREFIX
from jaxrl_hpc.read_files import read_json

PARTS, WHOLE = "trace_parts", "trace.json"


class Trace:
    """The phases of one process. Costs nothing where it is not active."""

    def __init__(self, rank: int = 0, active: bool = False) -> None:
        self.rank, self.active = rank, active
        self.events: list[dict[str, Any]] = []
        self.shares: dict[str, float] = {}  # part of a computation -> its share in it
        self._totals: dict[str, float] = defaultdict(float)
        self.begin(0.0)

    def begin(self, seconds_before: float) -> None:
        """Time zero of this process, after so many seconds of earlier ones."""
        self._zero = time.perf_counter() - seconds_before

    @contextlib.contextmanager
    def span(self, name: str, **details: Any) -> Iterator[None]:
        """Count what happens inside as a phase."""
        if not self.active:
            yield
            return
        start = time.perf_counter()
        try:
            yield
        finally:
            self.since(name, start, **details)

    def since(self, name: str, start: float, **details: Any) -> None:
        """Count what happened since `start` (time.perf_counter) as a phase."""
        if not self.active:
            return
        seconds = time.perf_counter() - start
        self._totals[name] += seconds
        self.events.append(
            {
                "name": name, "ph": "X", "pid": self.rank, "tid": 0, "args": details,
                "ts": round((start - self._zero) * 1e6, 1), "dur": round(seconds * 1e6, 1),
            }
        )  # fmt: skip

    def take(self) -> dict[str, float]:
        """Seconds per phase since the last call, as metrics; computing in parts where those are known."""
        totals, self._totals = self._totals, defaultdict(float)
        if self.shares and "computing" in totals:
            seconds = totals.pop("computing")
            totals.update({name: share * seconds for name, share in self.shares.items()})
        return {f"{CLOCK_PREFIX}{name}": seconds for name, seconds in totals.items()}

    def write(self, run_dir: Path) -> None:
        """This rank's part."""
        label = {"name": f"rank {self.rank} on {socket.gethostname()}"}
        about = {"name": "process_name", "ph": "M", "pid": self.rank, "tid": 0, "args": label}
        folder = run_dir / PARTS
        folder.mkdir(exist_ok=True)
        text = json.dumps({"zero": self._resumed_at(), "events": [about, *self.events]})
        write_atomically(folder / f"rank-{self.rank:06}.json", text.encode())

    def _resumed_at(self) -> float:
        """Microseconds: where this process began to train."""
        return min((event["ts"] for event in self.events), default=0.0)


def merge(run_dir: Path) -> Path:
    """One file of the parts of all ranks and of what an earlier process of the run left."""
    files = sorted((run_dir / PARTS).glob("rank-*.json"))
    parts = [read_json(path) for path in files]
    events = [event for part in parts for event in part["events"]]
    path = run_dir / WHOLE
    if path.exists():
        since = min(part["zero"] for part in parts)
        earlier = read_json(path)["traceEvents"]
        # events after the checkpoint that was resumed from have been repeated
        events = [event for event in earlier if event["ph"] == "X" and event["ts"] < since] + events
    write_atomically(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode())
    for file in files:
        file.unlink()
    if not any((run_dir / PARTS).iterdir()):
        (run_dir / PARTS).rmdir()
    return path
