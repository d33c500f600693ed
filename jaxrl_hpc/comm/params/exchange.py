"""Parameters shared by workers: push a change, pull the result. Rules over windows (servers: server.py).

    lock        read, combine, write under a lock
    hogwild     plain loads and stores into memory of the node, no lock: changes may overwrite each other
                (Recht et al. 2011)
    accumulate  every number is added atomically (MPI_Accumulate): nothing is lost, but a reader may see a
                change half applied

Every exchange has a number, in the order in which they happen. The stored data is bytes; `combine` computes
new ones from the old, a change and its number. A change older than `max_lag` exchanges is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from jaxrl_hpc.comm.buffers import aligned
from jaxrl_hpc.comm.rma.atomics import AtomicCounter, Mutex
from jaxrl_hpc.comm.rma.progress_thread import ProgressThread
from jaxrl_hpc.comm.rma.selftest import examine
from jaxrl_hpc.comm.rma.window import Window
from jaxrl_hpc.comm.waiting import wait_for
from jaxrl_hpc.errors import UserError

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

Combine = Callable[[np.ndarray, np.ndarray, int], None]  # (stored bytes, changed in place; change; number)
Rule = Literal["lock", "hogwild", "accumulate"]
LINE = 64  # bytes


class ExchangeSettings(NamedTuple):
    """Settings of one rank."""

    stored: int  # bytes
    change: int  # bytes
    combine: Combine
    max_lag: int | None
    seconds: float  # that a wait may take
    ordered: bool  # exchanges must be reproducible: those that could overlap take turns


class Answer(NamedTuple):
    """Result of an exchange."""

    number: int  # among all exchanges, from 0 on
    used: bool  # False: the change was too old
    data: np.ndarray  # [stored] uint8 as it was right after, a copy


class Exchange(Protocol):
    """One worker's end."""

    def load(self, data: np.ndarray, number: int) -> None:
        """Worker 0: store bytes, after so many exchanges. The others must not read before."""
        ...

    def read(self) -> np.ndarray:
        """A copy of what is stored."""
        ...

    def swap(self, change: np.ndarray, since: int, turn: int | None) -> Answer:
        """Push a change relative to the state after `since` exchanges. `turn`: wait to be that exchange."""
        ...

    def close(self) -> None:
        """Together with all workers."""
        ...


def add_numbers(stored: np.ndarray, change: np.ndarray, number: int) -> None:
    """Combine by adding float32."""
    del number
    stored.view(np.float32)[:] += change.view(np.float32)


class WindowExchange:
    """All three rules; the memory is worker 0's."""

    def __init__(self, comm: Intracomm, rule: Rule, settings: ExchangeSettings) -> None:
        self.rule, self.settings = rule, settings
        verdict = examine(comm)
        if not verdict.works:
            raise UserError(
                f"workflow.rule={rule} needs one-sided memory, which cannot be used here ({verdict.text}): "
                "use workflow.rule=server"
            )
        kind: Any = "shared" if rule == "hogwild" else "network" if rule == "accumulate" else "auto"
        if rule == "hogwild" and not _one_node(comm):
            raise UserError("workflow.rule=hogwild: all workers must be on one node; use accumulate")
        self.window = Window(comm, 2 * LINE + settings.stored, kind)
        self.numbers = AtomicCounter(self.window, 0, LINE)
        self.mutex = Mutex(self.window, 0, 0, settings.seconds)
        self._thread = ProgressThread(comm) if verdict.needs_thread else None
        if self._thread:
            self._thread.__enter__()

    def load(self, data: np.ndarray, number: int) -> None:
        self.window.write(0, 2 * LINE, data)
        self.numbers.replace(number)

    def read(self) -> np.ndarray:
        out = aligned(self.settings.stored)
        if self.rule == "accumulate":
            self.window.fetch(0, 2 * LINE, out.view(np.float32))
        else:
            self.window.read(0, 2 * LINE, out)
        return out

    def swap(self, change: np.ndarray, since: int, turn: int | None) -> Answer:
        if turn is not None:
            wait_for(
                lambda: self.numbers.read() >= turn or None,
                self.settings.seconds,
                self.window.rank,
                f"exchange {turn - 1} of the schedule",
            )
        if self.rule == "lock" or self.settings.ordered:
            with self.mutex.held():
                number = self.numbers.read()
                answer = self._change(change, since, number)
                self.numbers.replace(number + 1)  # last: it is what a turn waits for
                return answer
        return self._change(change, since, self.numbers.add(1))

    def _change(self, change: np.ndarray, since: int, number: int) -> Answer:
        settings = self.settings
        used = settings.max_lag is None or number - since <= settings.max_lag
        if self.rule == "accumulate":
            if used:
                self.window.accumulate(0, 2 * LINE, change.view(np.float32))
        elif self.rule == "hogwild":
            memory = self.window.memory(0)
            assert memory is not None
            if used:
                settings.combine(memory[2 * LINE : 2 * LINE + settings.stored], change, number)
        elif used:
            data = self.read()
            settings.combine(data, change, number)
            self.window.write(0, 2 * LINE, data)
            return Answer(number, True, data)
        return Answer(number, used, self.read())

    def close(self) -> None:
        self.window.barrier()
        if self._thread:
            self._thread.__exit__()
        self.window.free()


def _one_node(comm: Intracomm) -> bool:
    from mpi4py import MPI

    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    together = comm.allreduce(int(node.Get_size() == comm.Get_size()), MPI.MIN)
    node.Free()
    return bool(together)
