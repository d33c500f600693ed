"""What the fleets of jobs with roles have in common: one lane, whose programs are those of the workflow."""

from __future__ import annotations

import abc
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_hpc.build import Parts
from jaxrl_hpc.comm.watchdog import Watchdog
from jaxrl_hpc.config import Config
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.fleet import TRAIN_STREAM, Fleet, Lane
from jaxrl_hpc.types import Array, PyTree


class JobFleet(Fleet, abc.ABC):
    """One lane. `join` comes before training; without it it can only be looked at."""

    kind = ""  # of job, in the sentence that refuses several seeds

    def __init__(self, config: Config, parts: Parts, lanes: Sequence[Lane], episodes: int) -> None:
        if len(lanes) > 1:
            raise UserError(
                f"run.seeds is {len(lanes)}: with {self.kind} a job trains one seed; "
                "start a job per seed with run.seed=…"
            )
        super().__init__(parts, lanes, "solo", episodes, jax.local_devices()[:1])
        self.config = config
        self.programs: Any = parts.workflow.programs
        self.watchdog: Watchdog | None = None
        self.folder = Path()

    @abc.abstractmethod
    def _open(self, state: PyTree) -> None:
        """Begin to work with the others, from this state on."""

    def _key(self) -> Array:
        return self._stream(self._arguments(self.groups[0])[0], TRAIN_STREAM)

    def state_shape(self) -> PyTree:
        return jax.eval_shape(self.parts.workflow.init, *self._arguments(self.groups[0]))

    def compile(self, training: bool = True) -> None:
        if self.ranks.first:
            super().compile(training=False)
        start = time.perf_counter()
        if training:
            self.programs.compile(self.state_shape())
        self.compile_seconds += time.perf_counter() - start

    def fresh(self) -> PyTree:
        return jax.jit(self.parts.workflow.init)(self._key(), self._arguments(self.groups[0])[1])

    def initialise(self) -> None:
        state = self.fresh()
        self._open(state)
        warmup = self.parts.workflow.warmup
        self.states = [warmup(state) if warmup else state]

    def load(self, states: Sequence[PyTree]) -> None:
        """Copied: a donated buffer must not be NumPy's memory."""
        self.states = [jax.tree.map(jnp.copy, state) for state in states]
        if self.watchdog is not None:
            self._open(self.states[0])

    def step(self, iterations: int) -> list[dict[str, Array]]:
        self.states[0], metrics = self.parts.workflow.step(self.states[0], iterations)
        return [metrics]
