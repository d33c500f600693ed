"""What all workflows have in common: settings that a run asks for, and defaults of the contract in
types.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import jax

from jaxrl_hpc.checkpoint.checkpointer import Checkpointer, state_bytes
from jaxrl_hpc.comm.ranks import world
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.schema import ComponentConfig, static
from jaxrl_hpc.types import (
    Agent,
    Array,
    Job,
    LearnerState,
    Loops,
    Metrics,
    Placement,
    PyTree,
    Replay,
    Role,
    StopRequest,
    Store,
)

WaitingMode = Literal["auto", "spin", "sleep"]
WAITING = (
    "ranks that wait for others: spin, quickest with a core per rank; sleep, which leaves the core to "
    "others; auto: sleep where ranks outnumber cores"
)


class Resources(NamedTuple):
    """What a run of the workflow asks of the machine. Known before JAX starts."""

    total_copies: int  # environment copies of all processes
    devices: int = 0  # host devices of a process that uses ranks; 0: one
    shards: int = 1  # equal parts that batch, capacity and copies are divided into
    deterministic: bool = False  # the same bits on every layout: programs must round alike
    shares_cores: bool = False  # several processes of a node work at the same time: one thread each
    mpi_in_programs: bool = False  # they cannot call the host then
    engine: Literal["", "auto", "mpi", "jax"] = ""  # what connects programs of several processes; "": MPI
    deadline_seconds: float = 0.0  # longest time without progress; 0: any
    waiting: WaitingMode = "auto"  # how ranks wait for each other


class WorkflowConfig(ComponentConfig):
    """Settings of every workflow."""

    uses_ranks: ClassVar[bool] = False  # whether it spans the processes of a job
    replay_unroll: ClassVar[int] = 1  # what an unroll_length of 0 means for agents with a replay

    num_envs: int = static(8, "environment copies", per_shard="exact", ge=1)
    unroll_length: int = static(0, "steps of every copy per iteration; 0: as many as suit the agent", ge=0)
    updates_per_iteration: int = static(1, "replay samples learned from per iteration", ge=1)
    actor_priorities: bool = static(False, "actors rate what they add to the replay, instead of the maximum")

    @property
    def cuts_windows(self) -> bool:
        """Whether windows of the replay end with their unroll, because the next one may not continue it."""
        return False

    @property
    def acts(self) -> bool:
        """Whether it acts in the environment; else recorded transitions can stand for it."""
        return True

    @property
    def unrolls_per_add(self) -> int:
        """Unrolls that the replay takes at once, one after the other in time: its tree is updated once."""
        return 1

    @property
    def has_schedules(self) -> bool:
        """Whether ranks come in an order of their own, which a run can write down and repeat."""
        return self.uses_ranks and not self.resources().mpi_in_programs

    def resources(self) -> Resources:
        return Resources(total_copies=self.num_envs)

    def check_priorities(self, agent: Agent, replay: Replay | None) -> None:
        """Refuse `actor_priorities` for agents that cannot rate steps and replays that ignore ratings."""
        if self.actor_priorities and (replay is None or agent.priority is None):
            raise UserError(
                "workflow.actor_priorities: this agent's actors cannot rate their steps; set it to false"
            )
        if self.actor_priorities and replay is not None and not replay.has_priorities:
            raise UserError(
                "workflow.actor_priorities: this replay draws all windows alike and would ignore them; set "
                "it to false, or use replay.name=prioritised"
            )


class DistributedConfig(WorkflowConfig):
    """Settings of a workflow whose ranks act side by side, each with `num_envs` copies."""

    uses_ranks: ClassVar[bool] = True

    num_envs: int = static(8, "environment copies of each rank", ge=1)
    deadline_seconds: float = static(
        300.0,
        "the job is ended when one of its ranks makes no progress for this long; 0: never",
        changeable=True,
        ge=0,
    )
    waiting: WaitingMode = static("auto", WAITING, changeable=True)

    def acting_ranks(self, ranks: int) -> int:
        """How many of a job's ranks act."""
        return ranks

    def resources(self) -> Resources:
        return Resources(
            # of all ranks: what exploration with an epsilon per copy is spread over
            total_copies=self.num_envs * self.acting_ranks(world().size),
            shares_cores=True,
            deadline_seconds=self.deadline_seconds,
            waiting=self.waiting,
        )


class WorkflowBase:
    """Defaults of the contract (types.Workflow): one process that learns, plain checkpoints, no helpers.

    A subclass has at least init, step, learner, counters and steps_per_iteration.
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
