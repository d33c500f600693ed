"""Self-test of one-sided memory at the start of a job, since MPI libraries and networks differ.

All ranks try what the workflows use: windows, data to a neighbour and back, atomic numbers, bits, rings.
Wrong results, errors and operations that do not end are all found. After each stage all ranks agree whether
to continue, without blocking: if one of them failed, all stop together and free the window. The trial runs on
a thread of its own, because an operation that never ends can only be abandoned; a deadline, which every
completed operation renews, detects that. A process with such a thread cannot call MPI_Finalize
(`exit_without_finalize.py`).

The last stage tests whether a rank's memory can be reached over a network while that rank computes, or
whether it needs a thread that calls MPI (`progress_thread.py`). Shared memory never does.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxrl_hpc.comm.exit_without_finalize import remember
from jaxrl_hpc.comm.rma.atomics import AtomicCounter, Bitmap
from jaxrl_hpc.comm.rma.ring import RingQueue
from jaxrl_hpc.comm.rma.window import Kind, NoWindow, Window, rounded
from jaxrl_hpc.comm.waiting import Stalled, wait_for

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

ITEMS, ITEM_BYTES, CAPACITY = 12, 1000, 4
TRIES, BUSY_SECONDS = 3, 0.12
DEADLINE_SECONDS = 60.0  # without progress: on a busy host a rank may not run for seconds
GRACE_SECONDS = 2.0  # time in which the thread can report what it waited for
LINE = 64  # bytes
SUM, BITS, FLAGS, DATA = 0, LINE, 2 * LINE, 3 * LINE  # places in the window
RINGS = DATA + rounded(ITEM_BYTES)


class Verdict(NamedTuple):
    """The same on all ranks."""

    works: bool
    needs_thread: bool  # others wait while a rank computes, unless it has a ProgressThread
    text: str


class SelfTestResult(NamedTuple):
    """Result of the self-test on one rank."""

    problem: str | None
    freed: bool  # the window, and with it all that the trial made
    reach: float  # seconds that it took to reach a rank that was busy
    kind: Kind


def examine(comm: Intracomm, kind: Kind = "auto", seconds: float = DEADLINE_SECONDS) -> Verdict:
    """Collective. Leaves a thread behind if an operation never ends."""
    agreement, trial = comm.Dup(), SelfTest(comm.Dup(), kind, seconds)
    thread = threading.Thread(target=trial.run, daemon=True)
    thread.start()
    while thread.is_alive() and time.monotonic() < trial.until + GRACE_SECONDS:
        thread.join(0.1)
    found: list[SelfTestResult] = agreement.allgather(trial.outcome())
    if all(one.freed for one in found):
        thread.join()
        trial.comm.Free()
        agreement.Free()
    else:
        remember(agreement)
    problems = {
        one.problem: rank for rank, one in reversed(list(enumerate(found))) if one.problem is not None
    }
    if problems:
        # report failures first, then stalled ranks; the others only waited
        text = min(
            problems, key=lambda text: (text.startswith("Stalled"), text.startswith("no end"), problems[text])
        )
        return Verdict(False, False, f"rank {problems[text]}: {text}")
    late = max(one.reach for one in found) > BUSY_SECONDS / 2
    reached = "reached only while its rank calls MPI" if late else "reached while its rank computes"
    return Verdict(
        True, late, f"{found[0].kind} window: data, atomic numbers, bits and a ring work; {reached}"
    )


class SelfTest:
    """The test of one rank, on a thread; other threads may inspect it meanwhile."""

    def __init__(self, comm: Intracomm, kind: Kind, seconds: float) -> None:
        self.comm, self.kind, self.seconds = comm, kind, seconds
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.stage = "making a window"
        self.until = time.monotonic() + seconds
        self.reach = 0.0
        self.window: Window
        self._problem: str | None = None
        self._ended = self._freed = self._was_set = False

    def outcome(self) -> SelfTestResult:
        problem = self._problem
        if problem is None and not self._ended:
            problem = f"no end of {self.stage} within {self.seconds:.0f} s"
        return SelfTestResult(problem, self._freed, self.reach, self.kind)

    def run(self) -> None:
        try:
            self._stages()
        except NoWindow as error:  # on all ranks alike, and nothing was made
            self._problem, self._freed = str(error), True
        except Exception as error:  # any error is a result of the test
            self._problem = self._problem or _described(error)
        self._ended = True

    def _stages(self) -> None:
        self.window = Window(self.comm, RINGS + 2 * RingQueue.nbytes(CAPACITY, ITEM_BYTES), self.kind)
        self.kind = self.window.kind
        stages = [self.data, self.change, self.check, self.stored, self.claimed]
        if self.kind != "shared":
            stages += [self.reach_first, self.reach_others]
        for stage in stages:
            self.stage = f"stage {stage.__name__}"
            self._progress()
            stalled = False
            try:
                stage()
            except Exception as error:
                self._problem, stalled = _described(error), isinstance(error, Stalled)
            if not self._agree(self._problem is None, GRACE_SECONDS if stalled else self.seconds):
                break
        self.window.free()
        self._freed = True

    def _progress(self) -> None:
        self.until = time.monotonic() + self.seconds

    def _wait(self, look: Callable[[], bool], what: str, seconds: float | None = None) -> None:
        self._progress()
        wait_for(lambda: look() or None, self.seconds if seconds is None else seconds, self.rank, what)
        self._progress()

    def _agree(self, good: bool, seconds: float) -> bool:
        """Whether all ranks passed this stage; a barrier without blocking.

        A rank whose wait for a stuck one has already timed out waits only briefly here.
        """
        from mpi4py import MPI

        mine, least = np.array([int(good)]), np.empty(1, int)
        request = self.comm.Iallreduce(mine, least, MPI.MIN)
        self._wait(request.Test, f"the others after {self.stage}", seconds)
        return bool(least[0])

    def data(self) -> None:
        """To the memory of the next rank, and back."""
        after, rng = (self.rank + 1) % self.size, np.random.default_rng(self.rank)
        sent, back = rng.integers(0, 256, ITEM_BYTES, np.uint8), np.zeros(ITEM_BYTES, np.uint8)
        self.window.write(after, DATA, sent)
        self.window.read(after, DATA, back)
        right = np.array_equal(sent, back)
        _expect(right, f"bytes written to the memory of rank {after} were read back differently")

    def _bits(self) -> Bitmap:
        return Bitmap(self.window, 0, BITS, min(self.size, 512))

    def change(self) -> None:
        """Numbers and bits, all ranks at once."""
        for _ in range(ITEMS):
            AtomicCounter(self.window, 0, SUM).add(self.rank + 1)
            self._progress()
        self._was_set = self._bits().set(self.rank % self._bits().count)

    def check(self) -> None:
        total, expected = AtomicCounter(self.window, 0, SUM).read(), ITEMS * self.size * (self.size + 1) // 2
        _expect(total == expected, f"atomic additions gave {total}, not {expected}")
        kept = bool(self._bits().all().all()) and not (self._was_set and self.size <= self._bits().count)
        _expect(kept, "a bit that was set got lost")

    def stored(self) -> None:
        self._ring(0, alone=True)

    def claimed(self) -> None:
        self._ring(1, alone=False)

    def _ring(self, number: int, alone: bool) -> None:
        """Every rank puts items into a ring of its own and takes those of the rank before."""
        offset = RINGS + number * RingQueue.nbytes(CAPACITY, ITEM_BYTES)
        place: Any = (offset, CAPACITY, ITEM_BYTES, "block", alone)
        out, into = (
            RingQueue(self.window, self.rank, *place),
            RingQueue(self.window, (self.rank - 1) % self.size, *place),
        )
        made, expected = (np.random.default_rng([owner, number]) for owner in (self.rank, into.owner))
        taken = 0

        def move() -> bool:
            """Put items in and take items out as far as possible -> whether anything moved."""
            nonlocal taken
            pushes = out.counts["pushed"] < ITEMS and out.room()
            if pushes:
                out.push(made.integers(0, 256, ITEM_BYTES, np.uint8))
            item = into.take()
            if item is not None:
                data = expected.integers(0, 256, ITEM_BYTES, np.uint8)
                right = item.number == taken and np.array_equal(item.data, data)
                _expect(
                    right, f"item {taken} from the ring of rank {into.owner} differs from what was put in"
                )
                taken += 1
            return pushes or item is not None

        while taken < ITEMS or out.counts["pushed"] < ITEMS:
            self._wait(move, f"items from the ring of rank {into.owner}")

    def reach_first(self) -> None:
        """All others reach rank 0, which is busy."""
        self._reach([0], list(range(1, self.size)))

    def reach_others(self) -> None:
        """Rank 0 reaches some of the others, which are busy."""
        self._reach(sorted({1, self.size // 2, self.size - 1} - {0, self.size}), [0])

    def _reach(self, busy: list[int], reaching: list[int]) -> None:
        """Busy ranks announce this in the memory of those that access theirs, and then do not call MPI for a
        while."""
        data = np.zeros(LINE, np.uint8)
        seconds: dict[int, list[float]] = {rank: [] for rank in busy}
        for number in range(1, TRIES + 1):
            if self.rank in busy:
                for rank in reaching:
                    self.window.store(rank, FLAGS + 8 * busy.index(self.rank), number)
                time.sleep(BUSY_SECONDS)
                self._progress()
            for place, rank in enumerate(busy if self.rank in reaching else []):
                self._wait(partial(self._flagged, place, number), f"rank {rank} to be busy")
                start = time.monotonic()
                AtomicCounter(self.window, rank, SUM).add(1)
                self.window.read(rank, SUM, data)
                seconds[rank].append(time.monotonic() - start)
        found = [statistics.median(each) for each in seconds.values() if each]
        self.reach = max([self.reach, *found])

    def _flagged(self, place: int, number: int) -> bool:
        return self.window.peek(self.rank, FLAGS + 8 * place) >= number


def _described(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _expect(right: bool, otherwise: str) -> None:
    if not right:
        raise RuntimeError(otherwise)
