"""One-sided memory: every rank can read and write the windows of all others (MPI RMA).

Two kinds with one interface. `network` (Win.Allocate) reaches every rank. `shared` (Win.Allocate_shared) is
mapped into every process of a node: data is copied by plain loads and stores, and `memory` shows other ranks'
bytes in place. A number that several ranks change is changed only by MPI's atomic operations; one that a
single rank changes, by `store`, which is a plain store in shared memory: an MPI flush would yield the core.
Never use both on one number.

Order of operations: there is one epoch (Lock_all) for the lifetime of the window, and every operation here is
complete at its target when it returns. So data written before a number is published is visible to all who
read that number. Over a network a flush ensures this. In shared memory it is Win.Sync, a full memory barrier:
before a store, so that no machine, however weakly it orders, shows the number before the data, and no load of
a copy is still under way when the number gives the memory back; after it, so that what the number announces
(a write that begins) follows; after a load (`peek`), so that data is not read before the number that vouches
for it. Numbers are aligned, a load or store of one is a single instruction, and so whole.

Atomic numbers are int64 for add, min, max and replace; int32 for bits and compare-and-swap, whose 64-bit
forms crash or get lost on some MPI libraries.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from jaxrl_hpc.comm.buffers import ALIGNMENT
from jaxrl_hpc.errors import UserError

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

Kind = Literal["auto", "network", "shared"]
Bits = Literal[32, 64]
SHARED_FOLDER = "/dev/shm"


class NoWindow(UserError):
    """A window cannot be made. Raised on all ranks, which can continue without it."""


def rounded(nbytes: int) -> int:
    """Rounded up to whole cache lines."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Window:
    """Bytes of every rank of a communicator, initially zero. Making and freeing one is collective."""

    def __init__(self, comm: Intracomm, nbytes: int, kind: Kind = "auto") -> None:
        from mpi4py import MPI

        self.comm = comm.Dup()  # failures and barriers of its own
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.nbytes = max(rounded(nbytes), ALIGNMENT)
        node = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        if kind == "auto":
            together = self.comm.allreduce(int(node.Get_size() == self.size), MPI.MIN)
            kind = "shared" if together else "network"
        node.Free()
        self.kind: Kind = kind
        if kind == "shared":
            self._check_room()
        self._window = self._allocate()
        self._mapped: dict[int, np.ndarray] = {}
        self._typed: dict[tuple[int, Bits], np.ndarray] = {}
        own: Any = self._window.tomemory()
        self._mapped[self.rank] = np.frombuffer(own, np.uint8)
        self._mapped[self.rank][:] = 0
        self._ops = {
            "sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX, "replace": MPI.REPLACE, "read": MPI.NO_OP,
            "or": MPI.BOR, "and": MPI.BAND,
        }  # fmt: skip
        self._window.Lock_all(MPI.MODE_NOCHECK)
        self._window.Sync()
        self.comm.Barrier()
        self.operations = 0  # so far, of all kinds

    def _check_room(self) -> None:
        """Refuse windows that do not fit: touching shared memory beyond the limit kills the process."""
        wanted = self.comm.allreduce(self.nbytes)
        free = shutil.disk_usage(SHARED_FOLDER).free if os.path.isdir(SHARED_FOLDER) else wanted
        problem = (
            f"the ranks of this node need {wanted / 2**20:.0f} MiB of shared memory, but {SHARED_FOLDER} "
            f"has {free / 2**20:.0f} MiB: enlarge it (docker: --shm-size), or lower workflow.in_flight"
        )
        self._agree(problem if wanted > free else None)

    def _allocate(self) -> Any:
        from mpi4py import MPI

        made, problem = None, None
        try:
            if self.kind == "shared":
                info = MPI.Info.Create({"alloc_shared_noncontig": "true"})
                made = MPI.Win.Allocate_shared(self.nbytes, 1, info=info, comm=self.comm)
                info.Free()
            else:
                made = MPI.Win.Allocate(self.nbytes, 1, comm=self.comm)
        except MPI.Exception as error:
            problem = " ".join(f"a window of {self.nbytes} bytes cannot be made: {error}".split())
        self._agree(problem)
        return made

    def _agree(self, problem: str | None) -> None:
        """Free memory may change between two checks: if one rank has no room, no rank gets a window."""
        problems = [text for text in self.comm.allgather(problem) if text is not None]
        if problems:
            self.comm.Free()
            raise NoWindow(problems[0])

    def memory(self, rank: int) -> np.ndarray | None:
        """A rank's bytes [nbytes] uint8 in place; None where they are not in this process's memory."""
        if rank not in self._mapped and self.kind == "shared":
            other: Any = self._window.Shared_query(rank)[0]
            self._mapped[rank] = np.frombuffer(other, np.uint8)
        return self._mapped.get(rank)

    def write(self, rank: int, offset: int, *parts: np.ndarray) -> None:
        """Bytes [n] uint8, one part after the other, to another rank (or our own), complete at the end."""
        self.operations += 1
        memory = self.memory(rank)
        for part in parts:
            if memory is not None:
                memory[offset : offset + part.nbytes] = part
            else:
                self._window.Put(part, rank, offset)
            offset += part.nbytes
        if memory is not None:
            self._window.Sync()
        else:
            self._window.Flush(rank)

    def read(self, rank: int, offset: int, *outs: np.ndarray) -> None:
        """Bytes into outs [n] uint8, one after the other."""
        self.operations += 1
        memory = self.memory(rank)
        if memory is not None:
            self._window.Sync()
        for out in outs:
            if memory is not None:
                out[:] = memory[offset : offset + out.nbytes]
            else:
                self._window.Get(out, rank, offset)
            offset += out.nbytes
        if memory is not None:
            self._window.Sync()
        else:
            self._window.Flush(rank)

    def store(self, rank: int, offset: int, value: int, bits: Bits = 64) -> None:
        """Store a number that only this rank changes, after all earlier reads and writes."""
        if self.kind != "shared":
            self.atomic("replace", rank, offset, value, bits)
            return
        self.operations += 1
        self._window.Sync()
        self._numbers(rank, bits)[offset * 8 // bits] = value
        self._window.Sync()

    def _numbers(self, rank: int, bits: Bits) -> np.ndarray:
        """A rank's shared memory as numbers; it begins at a cache line, since all lengths are whole ones."""
        if (rank, bits) not in self._typed:
            memory = self.memory(rank)
            assert memory is not None
            self._typed[rank, bits] = memory.view(np.int64 if bits == 64 else np.int32)
        return self._typed[rank, bits]

    def atomic(self, op: str, rank: int, offset: int, value: int = 0, bits: Bits = 64) -> int:
        """Apply sum, min, max, replace, read, or, and atomically -> the previous number."""
        self.operations += 1
        dtype = np.int64 if bits == 64 else np.int32
        given, before = np.array([value], dtype), np.empty(1, dtype)  # both live until the flush
        self._window.Fetch_and_op(given, before, rank, offset, self._ops[op])
        self._window.Flush(rank)
        return int(before[0])

    def peek(self, rank: int, offset: int, bits: Bits = 64) -> int:
        """The current or a recent value of a number, to poll for a change; data written before the change can
        be read afterwards. A plain load in shared memory; an atomic operation over a network, where
        operations of others on our memory may need us to call MPI."""
        if self.kind != "shared":
            return self.atomic("read", rank, offset, bits=bits)
        value = int(self._numbers(rank, bits)[offset * 8 // bits])
        self._window.Sync()
        return value

    def compare_and_swap(self, rank: int, offset: int, expected: int, value: int) -> bool:
        """Replace a 32-bit number if it has the expected value -> whether it had."""
        self.operations += 1
        given, compared = np.array([value], np.int32), np.array([expected], np.int32)
        before = np.empty(1, np.int32)
        self._window.Compare_and_swap(given, compared, before, rank, offset)
        self._window.Flush(rank)
        return int(before[0]) == expected

    def accumulate(self, rank: int, offset: int, numbers: np.ndarray) -> None:
        """Add float32 [n], each in one step; complete when it returns."""
        from mpi4py import MPI

        self.operations += 1
        self._window.Accumulate([numbers, MPI.FLOAT], rank, (offset, numbers.size, MPI.FLOAT), MPI.SUM)
        self._window.Flush(rank)

    def fetch(self, rank: int, offset: int, out: np.ndarray) -> None:
        """Read float32 numbers into out [n], each from before or after any `accumulate`, never in between."""
        from mpi4py import MPI

        self.operations += 1
        place, nothing = (offset, out.size, MPI.FLOAT), [np.empty(0, np.float32), 0, MPI.FLOAT]
        self._window.Get_accumulate(nothing, [out, MPI.FLOAT], rank, place, MPI.NO_OP)
        self._window.Flush(rank)

    def barrier(self) -> None:
        self.comm.Barrier()

    def free(self) -> None:
        """Free the window; collective."""
        self.comm.Barrier()
        self._mapped.clear()
        self._typed.clear()
        self._window.Unlock_all()
        self._window.Free()
        self.comm.Free()
