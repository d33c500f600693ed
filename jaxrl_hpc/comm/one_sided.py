"""Does one-sided memory work here? Asked at the start of a job, since MPI libraries and networks differ.

All ranks try what the workflows use: windows, data to a neighbour and back, atomic numbers, bits, a ring.
Wrong results, errors and operations that do not end are all found, the last by a deadline, because the trial
runs on a thread of its own. Then it is seen whether a rank's memory can be reached while that rank is busy
with other things, or whether it needs a thread that calls MPI for it (`progress.py`).
"""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple

import numpy as np

from jaxrl_hpc.comm.bitmap import Bitmap
from jaxrl_hpc.comm.counter import Counter
from jaxrl_hpc.comm.deadline import wait_for
from jaxrl_hpc.comm.ring import Ring
from jaxrl_hpc.comm.windows import Kind, Window, rounded

ITEMS, ITEM_BYTES, CAPACITY = 24, 1000, 4
BUSY_SECONDS = 0.15
DEADLINE_SECONDS = 20.0


class Verdict(NamedTuple):
    """The same on all ranks."""

    works: bool
    needs_thread: bool  # others wait while a rank computes, unless it has a ProgressThread
    text: str


def examine(comm: Any, kind: Kind = "auto", seconds: float = DEADLINE_SECONDS) -> Verdict:
    """Collective. Leaves a thread behind if an operation never ends."""
    agreement, trial = comm.Dup(), comm.Dup()
    outcome: dict[str, Any] = {"problem": f"no end within {seconds:.0f} s", "slowest": 0.0, "kind": kind}

    def attempt() -> None:
        try:
            outcome.update(_trial(trial, kind, seconds))
            outcome["problem"] = None
        except Exception as error:  # whatever goes wrong is the finding
            outcome["problem"] = " ".join(f"{type(error).__name__}: {error}".split())

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)
    found = agreement.allgather((outcome["problem"], outcome["slowest"], outcome["kind"]))
    problems = {text: rank for rank, (text, _, _) in reversed(list(enumerate(found))) if text is not None}
    if problems:
        # the first to fail knows why; the others only waited for it
        text = min(problems, key=lambda text: (text.startswith(("no end", "Stalled")), problems[text]))
        return Verdict(False, False, f"rank {problems[text]}: {text}")
    trial.Free()
    agreement.Free()
    late = max(slowest for _, slowest, _ in found) > BUSY_SECONDS / 2
    reached = "reached only while its rank calls MPI" if late else "reached while its rank computes"
    return Verdict(
        True, late, f"{found[0][2]} window: data, atomic numbers, bits and a ring right; {reached}"
    )


def _trial(comm: Any, kind: Kind, seconds: float) -> dict[str, Any]:
    rank, size = comm.Get_rank(), comm.Get_size()
    lines = {"sum": 0, "bits": 64, "data": 128, "ring": 128 + rounded(ITEM_BYTES)}
    window = Window(comm, lines["ring"] + Ring.nbytes(CAPACITY, ITEM_BYTES), kind)
    after = (rank + 1) % size
    rng = np.random.default_rng(rank)

    sent, back = rng.integers(0, 256, ITEM_BYTES, np.uint8), np.zeros(ITEM_BYTES, np.uint8)
    window.write(after, lines["data"], sent)
    window.read(after, lines["data"], back)
    _expect(
        np.array_equal(sent, back), f"what was put into the memory of rank {after} came back as other bytes"
    )

    total, flags = Counter(window, 0, lines["sum"]), Bitmap(window, 0, lines["bits"], min(size, 512))
    for _ in range(ITEMS):
        total.add(rank + 1)
    was_set = flags.set(rank % flags.count)
    window.barrier()
    expected = ITEMS * size * (size + 1) // 2
    _expect(total.read() == expected, f"atomic additions gave {total.read()}, not {expected}")
    kept = bool(flags.all().all()) and not (was_set and size <= flags.count)
    _expect(kept, "a bit that was set got lost")

    out, taken = Ring(window, rank, lines["ring"], CAPACITY, ITEM_BYTES), 0
    into = Ring(window, (rank - 1) % size, lines["ring"], CAPACITY, ITEM_BYTES)
    expected_rng = np.random.default_rng([into.owner, 1])
    own_rng = np.random.default_rng([rank, 1])

    def work() -> bool | None:
        """Puts in what fits, takes what is there."""
        nonlocal taken
        if out.counts["pushed"] < ITEMS and out.depth() < CAPACITY:
            out.push(own_rng.integers(0, 256, ITEM_BYTES, np.uint8))
        item = into.take()
        if item is not None:
            data = expected_rng.integers(0, 256, ITEM_BYTES, np.uint8)
            right = item.number == taken and np.array_equal(item.data, data)
            _expect(right, f"item {taken} from the ring of rank {into.owner} is not what was put in")
            taken += 1
        return True if taken == ITEMS and out.counts["pushed"] == ITEMS else None

    wait_for(work, seconds / 2, rank, f"items from the ring of rank {into.owner}")
    window.barrier()
    slowest = max(_reach(window, busy_first, lines["sum"]) for busy_first in (True, False))
    kind = window.kind
    window.free()
    return {"slowest": slowest, "kind": kind}


def _reach(window: Window, busy_first: bool, offset: int) -> float:
    """The longest operation on the memory of ranks that do not call MPI: rank 0, or all but rank 0."""
    window.barrier()
    slowest = 0.0
    if (window.rank == 0) == busy_first:
        time.sleep(BUSY_SECONDS)
    else:
        time.sleep(BUSY_SECONDS / 10)  # until they have left the barrier
        data = np.zeros(64, np.uint8)
        for rank in [0] if busy_first else range(1, window.size):
            start = time.monotonic()
            Counter(window, rank, offset).add(1)
            window.read(rank, offset, data)
            slowest = max(slowest, time.monotonic() - start)
    window.barrier()
    return slowest


def _expect(right: bool, otherwise: str) -> None:
    if not right:
        raise RuntimeError(otherwise)
