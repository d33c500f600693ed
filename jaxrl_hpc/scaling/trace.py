"""A trace of synchronous iterations: computing, waiting for others, and exchange.

XLA's profiler records when every operation of a program starts and ends. The k-th collective of all workers
is one exchange, which begins when the last of them arrives:

    computing   from the end of a collective to the start of the next
    waiting     from a worker's arrival to the last one's
    exchange    from the last arrival to the worker's own end

These add up to the whole. Recording takes time for every operation, which lengthens computing; waiting and
exchange are therefore given in time, not as shares of the recorded whole.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

PARTS = ("computing", "waiting", "exchange")
# names of operations: of JAX's collectives, and of mpi4jax's and our own calls
COLLECTIVE = re.compile(r"(psum|all_gather|all-reduce|all-gather|\w+_mpi|polling)")


def recorded(run: Callable[[], object]) -> list[np.ndarray]:
    """The collectives of each of this process's devices during `run`: [K, 2], start and end in ns."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.host_tracer_level = 2
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            run()
        (path,) = Path(folder).rglob("*.xplane.pb")
        data = jax.profiler.ProfileData.from_file(str(path))
    return collectives_of(data)


def collectives_of(data: Any) -> list[np.ndarray]:
    """By device, in order of time; on the clock that processes of a machine share."""
    began = 0
    found: dict[int, list[tuple[int, int]]] = {}
    for plane in data.planes:
        began = dict(plane.stats).get("profile_start_time", began)
        for line in plane.lines:
            for event in line.events:
                if COLLECTIVE.match(event.name):
                    device = dict(event.stats).get("device_ordinal", 0)
                    start = int(event.start_ns)
                    found.setdefault(device, []).append((start, start + int(event.duration_ns)))
    return [np.array(sorted(found[device]), np.int64) + began for device in sorted(found)]


def shares(workers: Sequence[np.ndarray]) -> dict[str, float]:
    """Of the time from the first collective to the last, the mean over workers [K, 2]."""
    counts = {len(each) for each in workers}
    if len(counts) != 1 or counts.pop() < 2:
        raise RuntimeError(f"workers recorded {[len(each) for each in workers]} collectives")
    start, end = (np.stack([each[:, i] for each in workers]) for i in (0, 1))  # [workers, K]
    last = start.max(axis=0)
    parts = start[:, 1:] - end[:, :-1], (last - start)[:, 1:], (end - last)[:, 1:]
    whole = (end[:, -1] - end[:, 0]).sum()
    return {name: float(part.sum() / whole) for name, part in zip(PARTS, parts, strict=True)}
