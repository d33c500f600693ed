"""What a checkpoint keeps of a run's actors, and of messages that are between them and a learner."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxrl_hpc.workflows.messages import Acting


class Kept(NamedTuple):
    """NumPy arrays."""

    ids: np.ndarray  # [A] int64 actors
    states: np.ndarray  # [A, bytes] uint8 packed ActorState
    pending: np.ndarray  # [M, bytes] uint8 messages not yet learned from, in order
    versions: np.ndarray  # [H] int64
    params: np.ndarray  # [H, bytes] uint8 packed parameters of these versions
    taken: int  # entries of the schedule so far
    dropped: int  # unrolls too old to be used, so far
    lost: int  # by the transport, so far

    @classmethod
    def nothing(cls, acting: Acting) -> Kept:
        def none(width: int) -> np.ndarray:
            return np.zeros((0, width), np.uint8)

        no = np.zeros(0, np.int64)
        state, message, params = (none(p.nbytes) for p in (acting.state, acting.message, acting.params))
        return cls(no, state, message, no, params, 0, 0, 0)
