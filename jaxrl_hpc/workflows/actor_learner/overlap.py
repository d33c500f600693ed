"""Reduces learners' gradients while they wait for, unpack and move the next unrolls.

    take unrolls u + 1 ─→ mean of update u has come: apply ─→ gradient u + 1 ─→ send it off, publish ─→ take …

Learners compute the same as without overlap. Parameters published after an iteration lack that iteration's
update, so that actors lag by one more update.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_hpc.comm.waiting import Backoff
from jaxrl_hpc.types import Array, Metrics, PyTree

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


class TravellingSum:
    """A non-blocking sum over learners. Made collectively.

    Args:
      comm: of the learners.
      ordered: add in order of rank, which gathers all vectors; else MPI divides the work
        (reduce-scatter and all-gather for long vectors).
    """

    def __init__(self, comm: Intracomm, ordered: bool) -> None:
        self.comm, self.ordered = comm.Clone(), ordered
        self.waited = Backoff()
        self._request: Any = None
        self._sent = self._received = np.zeros(0, np.float32)
        self._beside: PyTree = ()

    @property
    def under_way(self) -> bool:
        return self._request is not None

    def begin(self, numbers: Array, beside: PyTree) -> None:
        """Start the sum of [F] float32; `beside` is kept until the end."""
        self._sent, self._beside = np.array(numbers), beside
        if self.ordered:
            self._received = np.empty((self.comm.Get_size(), self._sent.size), np.float32)
            self._request = self.comm.Iallgather(self._sent, self._received)
        else:
            self._received = np.empty_like(self._sent)
            self._request = self.comm.Iallreduce(self._sent, self._received)

    def finish(self) -> tuple[np.ndarray, PyTree]:
        """The sum [F], and what was kept."""
        while not self._request.Test():
            self.waited.pause()
        self.waited.reset()
        self._request = None
        if not self.ordered:
            return self._received, self._beside
        total = self._received[0].copy()
        for other in self._received[1:]:
            total += other
        return total, self._beside


class OverlappedLearning:
    """Iterations of a learner whose update is applied at the beginning of the next one.

    Args:
      gradient: (state, sums, unrolls) -> (state, sums, gradients [F], statistics), compiled.
      apply: (state, sum of gradients [F], statistics) -> state, compiled.
      travelling: the non-blocking sum of gradients.
    """

    def __init__(
        self, gradient: Callable[..., PyTree], apply: Callable[..., PyTree], travelling: TravellingSum
    ) -> None:
        self._gradient, self._apply, self._travelling = gradient, apply, travelling

    def learn(self, state: PyTree, sums: Metrics, unrolls: PyTree) -> tuple[PyTree, Metrics]:
        state, sums, numbers, statistics = self._gradient(self.arrived(state), sums, unrolls)
        self._travelling.begin(numbers, statistics)
        return state, sums

    def arrived(self, state: PyTree) -> PyTree:
        """Apply the pending mean, if any."""
        if not self._travelling.under_way:
            return state
        return self._apply(state, *self._travelling.finish())
