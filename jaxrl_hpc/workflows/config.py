"""Settings shared by all workflows. Nothing here needs JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.schema import ComponentConfig, static

if TYPE_CHECKING:
    from jaxrl_hpc.types import Agent, Replay

WaitingMode = Literal["auto", "spin", "sleep"]
WAITING = (
    "how ranks wait for others: spin, fastest with a core per rank; sleep, which frees the core; auto: "
    "sleep if ranks outnumber cores"
)


class Resources(NamedTuple):
    """Requirements of a workflow on the machine. Known before JAX starts."""

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
    unroll_length: int = static(0, "steps of every copy per iteration; 0: the agent's default", ge=0)
    updates_per_iteration: int = static(1, "replay samples learned from per iteration", ge=1)
    actor_priorities: bool = static(
        False, "actors compute initial priorities for the replay, instead of the maximum so far"
    )

    @property
    def cuts_windows(self) -> bool:
        """Whether windows of the replay end with their unroll, because the next one may not be its
        continuation."""
        return False

    @property
    def acts(self) -> bool:
        """Whether it acts in the environment; else recorded transitions can replace it."""
        return True

    @property
    def unrolls_per_add(self) -> int:
        """Unrolls that the replay takes at once, one after the other in time: its tree is updated once."""
        return 1

    @property
    def has_schedules(self) -> bool:
        """Whether the order of ranks varies, so that a run can record and replay it."""
        return self.uses_ranks and not self.resources().mpi_in_programs

    def resources(self) -> Resources:
        return Resources(total_copies=self.num_envs)

    def check_priorities(self, agent: Agent, replay: Replay | None) -> None:
        """Refuse `actor_priorities` for agents that cannot compute priorities and replays that ignore
        them."""
        if self.actor_priorities and (replay is None or agent.priority is None):
            raise UserError(
                "workflow.actor_priorities: this agent's actors cannot compute priorities; set it to false"
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
        "the job ends if one of its ranks makes no progress for this many seconds; 0: never",
        changeable=True,
        ge=0,
    )
    waiting: WaitingMode = static("auto", WAITING, changeable=True)

    def acting_ranks(self, ranks: int) -> int:
        """How many of a job's ranks act."""
        return ranks

    def resources(self) -> Resources:
        from jaxrl_hpc.comm.ranks import world

        return Resources(
            # of all ranks: what exploration with an epsilon per copy is spread over
            total_copies=self.num_envs * self.acting_ranks(world().size),
            shares_cores=True,
            deadline_seconds=self.deadline_seconds,
            waiting=self.waiting,
        )
