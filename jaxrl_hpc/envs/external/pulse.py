"""A deadline for foreign calls of a compiled program, which may never return.

Such a call cannot be interrupted. But the program marks its begin and end in the host's memory (`pulse.cc`, a
microsecond), and a thread checks these marks: if one call takes too long, it reports this and ends the
process. Only time during which the thread itself ran counts, so that a job is not ended after a suspension.
Without the compiled library there is no deadline.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from jaxrl_hpc.ops.ffi import register
from jaxrl_hpc.types import Array

LIBRARY = Path(__file__).with_name("libpulse.so")
TARGET = "jaxrl_hpc_pulse_mark"
BEGUN, ENDED, STEP = range(3)  # places of the memory


@functools.cache
def available() -> bool:
    """Whether the library is available; loads and registers it the first time."""
    return register(LIBRARY, {TARGET: "PulseMark"})


class Call(NamedTuple):
    """One under way."""

    number: int
    doing: str
    seconds: float  # that it may take


class Pulse:
    """`hung` is called, in a thread of its own, with the call and the step it belongs to."""

    def __init__(self, seconds: float, hung: Callable[[Call, int], None]) -> None:
        self.seconds, self._hung = seconds, hung
        self._memory = np.zeros(3, np.int64)
        self._own: Call | None = None  # of the host, in a callback
        self._calls = 0  # of the host
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch from now on."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, daemon=True, name="pulse")
            self._thread.start()

    def close(self) -> None:
        if self._thread is not None:
            self._closed.set()
            self._thread.join()
            self._thread = None
            self._closed.clear()

    # -- marks -----------------------------------------------------------------

    def begin(self, handle: Array, step: Array) -> Array:
        """In the program: the call that takes this handle begins."""
        return self._mark(handle, step, True)

    def end(self, handle: Array, step: Array) -> Array:
        """In the program: the call that gave this handle has ended."""
        return self._mark(handle, step, False)

    def _mark(self, handle: Array, step: Array, begins: bool) -> Array:
        if not available():
            return handle
        result = jax.ShapeDtypeStruct(handle.shape, handle.dtype)
        call = jax.ffi.ffi_call(TARGET, result, input_output_aliases={0: 0})
        return call(handle, step, address=np.int64(self._memory.ctypes.data), begins=begins)

    @contextlib.contextmanager
    def busy(self, doing: str, seconds: float) -> Iterator[None]:
        """In the host, while the program waits for it."""
        self._calls += 1
        self._own = Call(-self._calls, doing, seconds)
        try:
            yield
        finally:
            self._own = None

    # -- the thread ------------------------------------------------------------

    def _under_way(self) -> Call | None:
        if self._own is not None:
            return self._own
        begun = int(self._memory[BEGUN])
        return None if begun == self._memory[ENDED] else Call(begun, "", self.seconds)

    def _watch(self) -> None:
        interval = min(1.0, self.seconds / 8)
        seen, still = self._under_way(), 0.0
        while not self._closed.wait(interval):
            now = self._under_way()
            still = still + interval if now is not None and now == seen else 0.0
            seen = now
            if now is not None and still >= now.seconds:
                self._hung(now, int(self._memory[STEP]))
                return
