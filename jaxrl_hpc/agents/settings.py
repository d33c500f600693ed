"""Settings shared by agents. Each declares its own fields, in its own order and with its own defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from jaxrl_hpc.networks.torso import NetworkConfig
from jaxrl_hpc.ops.optimise import OptimiserConfig


class NetworkAgentConfig(OptimiserConfig):
    """For agents with one torso, or several equal ones."""

    network: NetworkConfig = NetworkConfig()

    @property
    def hidden_widths(self) -> tuple[int, ...]:
        return self.network.hidden


class WindowAgentConfig(NetworkAgentConfig):
    """For agents that learn from windows of a replay, as long as their returns."""

    suitable_replay: ClassVar[str] = "uniform"
    if TYPE_CHECKING:
        n_step: int

    @property
    def window(self) -> int:
        """Steps of a replay sample."""
        return self.n_step
