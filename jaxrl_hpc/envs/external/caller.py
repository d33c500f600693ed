"""A thread that a simulator lives in, and calls into it that give up at a deadline.

Callbacks come from whichever of XLA's threads is free; many simulators want to be used by one. A call that
does not return leaves its thread behind (nothing can end it), and the caller goes on with a new one.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from jaxrl_hpc.envs.external.simulator import Wrong, describe_exception


class Hung(Exception):
    """A call did not return in time."""


class Caller:
    """One thread, for one simulator."""

    def __init__(self) -> None:
        self._questions: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True, name="simulator").start()

    def _serve(self) -> None:
        while (question := self._questions.get()) is not None:
            try:
                self._answers.put((question(), None))
            except BaseException as error:
                self._answers.put((None, error))

    def __call__(self, question: Callable[[], Any], seconds: float) -> Any:
        self._questions.put(question)
        try:
            answer, error = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise Hung from None
        if isinstance(error, Exception):
            raise error
        if error is not None:  # a simulator may not end the process: SystemExit is a fault like others
            raise Wrong(describe_exception(error)) from None
        return answer

    def end(self) -> None:
        """Lets the thread go, once it has returned."""
        self._questions.put(None)
