"""Waiting for another rank with a deadline, and a message that says which rank waited for what."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from jaxrl_hpc.comm.patience import Patience

T = TypeVar("T")


class Stalled(RuntimeError):
    """A deadline has passed."""


def wait_for(look: Callable[[], T | None], seconds: float, rank: int, what: str) -> T:
    """What `look` returns once it is not None; Stalled after so many seconds."""
    start, patience = time.monotonic(), Patience()
    while (found := look()) is None:
        waited = time.monotonic() - start
        if waited > seconds:
            raise Stalled(f"rank {rank} waited {waited:.1f} s for {what}")
        patience.pause()
    return found
