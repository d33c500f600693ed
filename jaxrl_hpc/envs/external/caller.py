"""A thread that runs a simulator, and calls into it with a deadline.

Callbacks come from any free thread of XLA; many simulators must be used from a single thread. A call that
does not return leaves its thread behind (it cannot be ended), and the caller continues with a new one.
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
        if error is not None:  # a simulator must not end the process: SystemExit is a fault like others
            raise Wrong(describe_exception(error)) from None
        return answer

    def end(self) -> None:
        """End the thread once its call has returned."""
        self._questions.put(None)
