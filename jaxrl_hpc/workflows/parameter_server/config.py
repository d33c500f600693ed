"""Settings of the parameter server, and checks of their combinations."""

from __future__ import annotations

from typing import Literal

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.schema import static
from jaxrl_hpc.types import Agent, Replay
from jaxrl_hpc.workflows.actor_learner.learner import check_windows
from jaxrl_hpc.workflows.config import DistributedConfig


class Config(DistributedConfig):
    """The parameter server's settings. Sizes are those of one worker."""

    name: Literal["parameter_server"] = "parameter_server"
    rule: Literal["lock", "hogwild", "accumulate", "server"] = static(
        "lock",
        "how changes are combined: under a lock, by plain stores, by atomic additions, at server ranks",
    )
    servers: int = static(1, "rule server: the last ranks, each with a shard of the parameters", ge=1)
    workers: int = static(
        0,
        "number of workers, which act and learn, checked against the job; 0: all other ranks",
        changeable=True,
        ge=0,
    )
    optimiser: Literal["worker", "server"] = static(
        "worker",
        "worker: each has its own and pushes changes of parameters; server: one, which gets their gradients",
    )
    local_updates: int = static(1, "H, iterations between exchanges", ge=1, le=10_000)
    num_envs: int = static(8, "environment copies of each worker", ge=1)
    replay: Literal["local", "global"] = static(
        "local", "local: each worker's replay has its own unrolls; global: those of all workers"
    )
    max_lag: int | None = static(None, "changes with a larger lag, in exchanges, are dropped", ge=0)

    def acting_ranks(self, ranks: int) -> int:
        return self.workers or max(1, ranks - self.serving)

    @property
    def cuts_windows(self) -> bool:
        """Whether the next unroll may come from another worker."""
        return self.replay == "global"

    @property
    def serving(self) -> int:
        return self.servers if self.rule == "server" else 0


def check(config: Config, agent: Agent, replay: Replay | None) -> None:
    """Refuse settings that do not fit together."""
    config.check_priorities(agent, replay)
    if config.replay == "global" and replay is None:
        raise UserError("workflow.replay=global: this agent has no replay; set it to local")
    check_windows(agent, replay, config.unroll_length, config.cuts_windows, ", or workflow.replay=local")
    if config.optimiser == "server" and agent.minibatches is not None:
        raise UserError(
            "workflow.optimiser=server: this agent makes several updates of one batch, each after the other; "
            "use workflow.optimiser=worker"
        )
    if config.optimiser == "server" and config.rule in ("hogwild", "accumulate"):
        raise UserError(
            f"workflow.rule={config.rule} can only add changes: set workflow.optimiser=worker, or rule=lock"
        )
    if config.optimiser == "server" and config.rule == "server" and config.servers > 1:
        raise UserError(
            "workflow.servers: gradients are clipped by their norm over all parameters, which a "
            "single shard lacks; set it to 1, or workflow.optimiser=worker"
        )
    if config.servers > 1 and config.rule != "server":
        raise UserError(f"workflow.servers: rule {config.rule!r} has none; use workflow.rule=server")
