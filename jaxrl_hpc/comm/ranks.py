"""The processes of a job: this process's rank, and collective operations on the host.

A job is what `mpirun -n N` or `srun` starts; a process started without them is a job of one. Host
communication uses its own communicators, because collectives of compiled programs (`collectives.py`) run at
the same time on XLA's threads. Never call these functions under a condition on the rank.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from jaxrl_hpc.comm import exit_without_finalize
from jaxrl_hpc.comm.waiting import Backoff, chosen
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.extras import INSTALL_MPI

if TYPE_CHECKING:
    from jaxrl_hpc.comm.hub import Connection
    from jaxrl_hpc.types import PyTree

T = TypeVar("T")
SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
RDMA_DEVICES = Path("/sys/class/infiniband")
AGREE_SECONDS = 5.0  # how long a failing rank waits to see whether all fail alike
VERDICT_SECONDS = 3.0  # how long it waits for a notice that another rank died, which explains its error


def launched_size() -> int:
    """The number of processes according to the launcher; 1 without one."""
    for name in SIZE_VARIABLES:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    if "PMIX_RANK" in os.environ:  # srun --mpi=pmix
        return int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
    return 1


class Ranks:
    """The job as seen by one of its processes. Without a communicator: a job of one."""

    def __init__(self, comm: Any = None) -> None:
        self.comm = comm
        self.rank: int = comm.Get_rank() if comm else 0
        self.size: int = comm.Get_size() if comm else 1
        self._host = comm.Clone() if comm else None
        self._errors = comm.Clone() if comm else None
        # for collectives inside compiled programs
        self.programs = cast(Any, comm.Clone() if comm else None)
        self._guarded = False
        self.connection: Connection | None = None  # detects the death of a process at once
        self.on_gone: Callable[[int, str], None] | None = None  # what to do then
        self.local_rank, self.local_size = 0, 1  # among the processes on this node
        if comm:
            from mpi4py import MPI

            node = comm.Split_type(MPI.COMM_TYPE_SHARED)
            self.local_rank, self.local_size = node.Get_rank(), node.Get_size()

    @property
    def first(self) -> bool:
        """Whether this process writes files and talks to the user."""
        return self.rank == 0

    def share(self, value: T) -> T:
        """Rank 0's value, on all ranks."""
        self._meet()
        return self._host.bcast(value) if self._host else value

    def gather(self, value: T) -> list[T]:
        """The values of all ranks."""
        self._meet()
        return self._host.allgather(value) if self._host else [value]

    def everyone(self, *numbers: int) -> np.ndarray:
        """The numbers of all ranks, [ranks, numbers] int64."""
        mine = np.array(numbers, np.int64)
        if not self._host:
            return mine[None]
        self._meet()
        theirs = np.empty((self.size, len(numbers)), np.int64)
        self._host.Allgather(mine, theirs)
        return theirs

    def add(self, numbers: np.ndarray) -> np.ndarray:
        """The sum over ranks, float64."""
        total = np.array(numbers, np.float64)
        if self._host:
            from mpi4py import MPI

            self._meet()
            self._host.Allreduce(MPI.IN_PLACE, total)
        return total

    def add_trees(self, tree: PyTree) -> PyTree:
        """The sum over ranks of a tree of numbers, float64, in one message."""
        import jax

        leaves, structure = jax.tree.flatten(jax.device_get(tree))
        if not leaves:
            return tree
        total = self.add(np.concatenate([np.ravel(leaf) for leaf in leaves]))
        parts = np.split(total, np.cumsum([np.size(leaf) for leaf in leaves])[:-1])
        shaped = [part.reshape(np.shape(leaf)) for part, leaf in zip(parts, leaves, strict=True)]
        return jax.tree.unflatten(structure, shaped)

    def barrier(self) -> None:
        """Barrier by polling with backoff: waiting ranks must not take cores from working ones."""
        if self._host:
            request, backoff = self._host.Ibarrier(), Backoff()
            while not request.Test():
                backoff.pause()

    def _meet(self) -> None:
        """Wait before a blocking collective, which would spin on a core."""
        if chosen().mode == "sleep":
            self.barrier()

    def ranks_per_core(self) -> float:
        """Ranks per core on the fullest node; cores are those that its ranks may use. Collective."""
        if not self.comm or not hasattr(os, "sched_getaffinity"):
            return 1.0
        from mpi4py import MPI

        node = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        cores: set[int] = set().union(*node.allgather(os.sched_getaffinity(0)))
        share = node.Get_size() / len(cores)
        node.Free()
        return float(self.comm.allreduce(share, MPI.MAX))

    def first_does(self, function: Callable[[], T]) -> T:
        """Call a function on rank 0; all ranks return its result, or raise its error."""
        result: T | None = None
        problem: str | None = None
        if self.first:
            try:
                result = function()
            except UserError as error:
                problem = str(error)
        result, problem = self.share((result, problem))
        if problem is not None:
            raise UserError(problem)
        return cast(T, result)

    def all_succeed(self, function: Callable[[], T]) -> T:
        """Call a function on every rank; if one fails, all fail, with a message that names the rank."""
        result: T | None = None
        problem: str | None = None
        try:
            result = function()
        except UserError as error:
            problem = str(error)
        problems = self.gather(problem)
        if any(p is not None for p in problems):
            raise UserError(self.summary_of(problems))
        return cast(T, result)

    def summary_of(self, problems: list[str | None]) -> str:
        """The problems and the ranks that had them, each problem once."""
        where: dict[str, list[int]] = {}
        for rank, problem in enumerate(problems):
            if problem is not None:
                where.setdefault(problem, []).append(rank)
        if self.size == 1 or (len(where) == 1 and None not in problems):
            return next(iter(where))
        return "; ".join(f"rank {', '.join(map(str, ranks))}: {text}" for text, ranks in where.items())

    def communicator(self, who: str) -> Any:
        """The communicator of all ranks; of this process alone without a launcher."""
        if self.comm is not None:
            return self.comm
        try:
            return start_mpi().COMM_SELF
        except (ImportError, RuntimeError) as error:
            raise UserError(f"{who} needs MPI ({error}): {INSTALL_MPI}") from None

    def abort(self, status: int) -> None:
        """End the whole job at once."""
        sys.stdout.flush()
        sys.stderr.flush()
        if self._host:
            self._host.Abort(status)
        os._exit(status)

    def attach(self, connection: Connection) -> None:
        """Use this connection to detect the death of a process."""
        self.connection = connection
        connection.on_gone = self._gone

    def _gone(self, rank: int, what: str) -> None:
        assert self.connection is not None
        (self.on_gone or self.connection.say_and_exit)(rank, what)

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Any exception inside ends the whole job, so that no rank waits for one that failed."""
        if self._guarded:
            yield
            return
        self._guarded = True
        try:
            yield
        except UserError as error:
            if self.size == 1 or self._all_failed():
                if self.first:
                    raise
                raise SystemExit(2) from None  # rank 0 prints it
            print(f"error: rank {self.rank} of {self.size}: {error}", file=sys.stderr)
            self.abort(2)
        except Exception:
            if self.size == 1:
                raise
            if self.connection is not None:  # ends this process if the death of another one was the reason
                time.sleep(VERDICT_SECONDS)
            print(f"rank {self.rank} of {self.size} failed and ends the job:", file=sys.stderr)
            traceback.print_exc()
            self.abort(1)
        finally:
            self._guarded = False

    def _all_failed(self) -> bool:
        """Whether all ranks fail alike, as with a mistake in the config."""
        assert self._errors is not None
        request, deadline = self._errors.Ibarrier(), time.monotonic() + AGREE_SECONDS
        while not request.Test():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True


_joined: Ranks | None = None


def join(ranks: Ranks) -> None:
    """Make this process part of a job without MPI."""
    global _joined
    _joined = ranks


def world() -> Ranks:
    """The job that this process belongs to. Starts MPI if a launcher started us."""
    return _joined or _launched()


def start_mpi() -> Any:
    """mpi4py's MPI, which importing initialises.

    UCX keeps 144 bytes for every piece of memory that the process returns to the system, until its cache of
    memory registered with a network card is used next. Without such a card that is never, and ranks grow.
    """
    if not (RDMA_DEVICES.is_dir() and any(RDMA_DEVICES.iterdir())):
        os.environ.setdefault("UCX_RCACHE_ENABLE", "n")
    from mpi4py import MPI

    return MPI


@functools.cache
def _launched() -> Ranks:
    expected = launched_size()
    if expected == 1:
        return Ranks()
    try:
        MPI = start_mpi()
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"this is one of {expected} MPI processes, but MPI cannot be used here ({error}): "
            f"{INSTALL_MPI} builds what is missing, with the MPI of a cluster if its module is loaded"
        ) from None
    size = MPI.COMM_WORLD.Get_size()
    if size != expected:
        library = MPI.Get_library_version().split("\n")[0].strip("\0 ")
        raise UserError(
            f"the launcher started {expected} processes, but MPI sees {size}: it belongs to a different MPI "
            f"than mpi4py, which uses {library}; use that library's mpiexec (jaxrl-hpc doctor finds it)"
        )
    exit_without_finalize.prepare()
    return Ranks(MPI.COMM_WORLD)
