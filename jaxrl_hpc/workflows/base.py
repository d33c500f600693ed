"""Defaults of the workflow contract in types.py. Settings are in config.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from jaxrl_hpc.checkpoint.checkpointer import Checkpointer, state_bytes
from jaxrl_hpc.types import (
    Array,
    Job,
    LearnerState,
    Loops,
    Metrics,
    Placement,
    PyTree,
    Role,
    StopRequest,
    Store,
)
from jaxrl_hpc.workflows.config import DistributedConfig as DistributedConfig
from jaxrl_hpc.workflows.config import Resources as Resources
from jaxrl_hpc.workflows.config import WorkflowConfig as WorkflowConfig


class WorkflowBase:
    """Defaults of the contract (types.Workflow): one process that learns, plain checkpoints, no helpers.

    A subclass implements at least init, step, learner, counters and steps_per_iteration.
    """

    traceable: bool = False
    steps_per_iteration: int
    warmup_steps: int = 0

    @property
    def has_warmup(self) -> bool:
        return self.warmup_steps > 0

    @property
    def device(self) -> jax.Device:
        return jax.local_devices()[0]

    def join(self, job: Job) -> Role:
        return Role(True, job.ranks)

    def assist(self, stop: StopRequest) -> bool:
        raise AssertionError("every process of this workflow learns")

    def compile(self, shape: PyTree) -> None:
        """Programs are compiled when they are first called."""

    def placement(self, shape: PyTree) -> Placement:
        return Placement(state_bytes(shape))

    def start(self, state: PyTree) -> PyTree:
        return state

    def warmup(self, state: PyTree) -> PyTree:
        return state

    def made(self, asked: int) -> int:
        return asked

    def host_metrics(self, metrics: dict[str, Any]) -> dict[str, Any]:
        return metrics

    def store(self, directory: Path, keep: int) -> Store:
        return Checkpointer(directory, keep=keep)

    def stop_request(self) -> tuple[int, int]:
        return 0, 0

    def describe(self) -> str:
        return ""

    def summary_extras(self) -> dict[str, Any]:
        return {}

    def profile(self, state: PyTree) -> Loops:
        return {}

    def close(self, finished: bool) -> None:
        """There are no helpers."""


class DistributedWorkflow(WorkflowBase):
    """Defaults over ranks, for states with the fields learner, iteration and env_steps."""

    job: Job | None = None  # None: this process only inspects a run

    def learner(self, state: PyTree) -> LearnerState:
        learner: LearnerState = state.learner
        return learner

    def counters(self, state: PyTree) -> dict[str, Array]:
        return {"iteration": state.iteration, "env_steps": state.env_steps, "updates": state.learner.step}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TraceableWorkflow(WorkflowBase):
    """A workflow of pure functions, as in types.Workflow."""

    init: Callable[..., PyTree]
    step: Callable[[PyTree, Any], tuple[PyTree, Metrics]]
    learner: Callable[[PyTree], LearnerState]
    counters: Callable[[PyTree], dict[str, Array]]
    steps_per_iteration: int
    fill: Callable[[PyTree], PyTree] = lambda state: state  # the warm-up
    warmup_steps: int = 0
    loops: Callable[[PyTree], Loops] = lambda state: {}  # parts of an iteration, for profiles
    traceable: bool = dataclasses.field(default=True, init=False)

    def warmup(self, state: PyTree) -> PyTree:
        return self.fill(state)

    def profile(self, state: PyTree) -> Loops:
        return self.loops(state)
