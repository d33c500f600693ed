"""Requests to stop: recorded when they arrive, handled between chunks."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from types import FrameType
from typing import Any

EXIT_SAVED = 75  # of a process that a signal stopped, state saved: start again with --resume
AGAIN_SECONDS = 0.5  # a launcher may forward a signal that the terminal has already sent to all processes
WORD = "\rSIGINT: saving after the current step; Ctrl-C again stops at once, unsaved\n"


class StopSignals:
    """Records a request to stop; the loop handles it between chunks.

    At a terminal Ctrl-C is acknowledged, and a second one interrupts as it would without a run.
    """

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)

    def __init__(self) -> None:
        self.received: str | None = None
        self.number = 0  # of the signal received
        self._when = 0.0
        self._old: dict[int, Any] = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        pressed = number == signal.SIGINT and sys.stderr.isatty()
        if pressed and self.number == signal.SIGINT:
            before = self._old.get(number)
            if callable(before) and time.monotonic() - self._when > AGAIN_SECONDS:
                before(number, frame)
            return
        if pressed:
            self._when = time.monotonic()
            os.write(sys.stderr.fileno(), WORD.encode())
        self.received, self.number = signal.Signals(number).name, number

    def __enter__(self) -> StopSignals:
        with contextlib.suppress(ValueError):  # not the main thread: signals are handled elsewhere
            self._old = {number: signal.signal(number, self._note) for number in self.numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
