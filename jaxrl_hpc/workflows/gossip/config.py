"""Settings of gossip, and checks of their combinations."""

from __future__ import annotations

from typing import Literal

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.schema import static
from jaxrl_hpc.types import Agent, Replay
from jaxrl_hpc.workflows.base import DistributedConfig

Topology = Literal["ring", "random", "complete"]


class Config(DistributedConfig):
    """The gossip workflow's settings. Sizes are those of one rank."""

    name: Literal["gossip"] = "gossip"
    topology: Topology = static(
        "random", "partners of a rank: both neighbours on a ring, one random rank per exchange, or all"
    )
    local_updates: int = static(1, "H, iterations between exchanges", ge=1, le=10_000)
    rate: float = static(1.0, "fraction of the way towards the mean of a rank and its neighbours", gt=0, le=1)
    staleness: int | None = static(
        None,
        "exchanges that a neighbour may be behind before a rank waits for it; null: never wait",
        ge=0,
    )
    moments: bool = static(True, "average the optimiser's moments and target networks too")
    num_envs: int = static(8, "environment copies of each rank", ge=1)


def check(config: Config, agent: Agent, replay: Replay | None) -> None:
    """Refuse settings that do not fit together."""
    config.check_priorities(agent, replay)


def check_ranks(config: Config, ranks: int) -> None:
    if config.topology == "complete" and ranks > 64:
        raise UserError(
            f"workflow.topology=complete: each of {ranks} ranks would read all others at every exchange; use "
            "random or ring beyond 64 ranks"
        )
