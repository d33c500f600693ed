"""Requests to stop: recorded when they arrive, handled between chunks."""

from __future__ import annotations

import contextlib
import signal
from types import FrameType
from typing import Any


class StopSignals:
    """Records a request to stop; the loop handles it between chunks."""

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)

    def __init__(self) -> None:
        self.received: str | None = None
        self.number = 0  # of the signal received
        self._old: dict[int, Any] = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received, self.number = signal.Signals(number).name, number

    def __enter__(self) -> StopSignals:
        with contextlib.suppress(ValueError):  # not the main thread: signals are handled elsewhere
            self._old = {number: signal.signal(number, self._note) for number in self.numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
