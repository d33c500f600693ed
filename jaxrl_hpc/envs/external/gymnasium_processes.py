"""Gymnasium environments in separate processes, stepped at the same time.

Uses Gymnasium's AsyncVectorEnv, and adds what that lacks: it identifies copies that failed, were killed or
hang, and recovers by ending all processes and creating the copies again.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import multiprocessing.connection
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np

from jaxrl_hpc.envs.external.gymnasium_vector import Vector
from jaxrl_hpc.envs.external.simulator import FAULTS, StepOutcome, Wrong, describe_exception
from jaxrl_hpc.types import EnvSpec

TOLD_SECONDS = 30.0  # until the end of a process is known


class CopyFailed(Exception):
    """(copy, text), out of a process. Gymnasium raises it again with this one as its only argument."""


class Named(gymnasium.Wrapper):
    """Adds the copy's number and the origin to exceptions, since tracebacks stay in the process."""

    def __init__(self, env: gymnasium.Env, copy: int) -> None:
        super().__init__(env)
        self.copy = copy

    def reset(self, **arguments: Any) -> Any:
        return self._try(functools.partial(self.env.reset, **arguments))

    def step(self, action: Any) -> Any:
        return self._try(functools.partial(self.env.step, action))

    def _try(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except FAULTS as error:
            raise CopyFailed(self.copy, describe_exception(error)) from None


def _named(make: Callable[[], Any], copy: int) -> Named:
    return Named(make(), copy)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppresses Gymnasium's output on a failed copy, such as a traceback: ours follows."""
    level = gymnasium.logger.min_level
    gymnasium.logger.min_level = gymnasium.logger.ERROR + 1
    try:
        yield
    finally:
        gymnasium.logger.min_level = level


class Processes(Vector):
    """A `Simulator` with a process for each copy."""

    def __init__(self, make: Callable[[], Any], spec: EnvSpec, copies: int) -> None:
        # imported once, in the process that all others are forked from
        multiprocessing.set_forkserver_preload(["__main__", __name__])
        env = gymnasium.vector.AsyncVectorEnv(
            [functools.partial(_named, make, copy) for copy in range(copies)],
            context="forkserver",  # a fork of this process, with XLA's threads in it, might hang
            autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
        )
        super().__init__(env, spec)

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        with self._blaming():
            return super().reset(seeds)

    def step(self, action: np.ndarray) -> StepOutcome:
        with self._blaming():
            return super().step(action)

    def _advance(self, actions: Any) -> Any:
        self.env.step_async(actions)
        for copy, pipe in enumerate(self.env.parent_pipes):
            self.busy = copy
            pipe.poll(None)
        self.busy = None
        return self.env.step_wait()

    @contextlib.contextmanager
    def _blaming(self) -> Iterator[None]:
        """Leaves the number of the copy at fault in `busy`."""
        self.busy = None
        try:
            with quiet():
                yield
        except CopyFailed as error:
            self.busy, text = error.args[0].args
            raise Wrong(text) from None
        except (EOFError, BrokenPipeError, ConnectionResetError):
            # reported by the process that forked it, which may be delayed on a busy machine
            multiprocessing.connection.wait([p.sentinel for p in self.env.processes], timeout=TOLD_SECONDS)
            ended = {i: p.exitcode for i, p in enumerate(self.env.processes) if p.exitcode is not None}
            self.busy, code = next(iter(ended.items()), (self.busy, "unknown"))
            raise Wrong(f"lost its process (exit code {code})") from None

    def kill(self) -> None:
        """End the processes unconditionally; from any thread."""
        for process in self.env.processes:
            process.kill()
        for process in self.env.processes:
            process.join(TOLD_SECONDS)
        self.env.closed = True

    def close(self) -> None:
        with contextlib.suppress(Exception), quiet():
            self.env.close()  # lets environments close themselves if they still respond
        self.kill()
