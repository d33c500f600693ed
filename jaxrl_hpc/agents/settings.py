"""Settings that agents share. Each declares its own fields, whose order and defaults are its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from jaxrl_hpc.networks.torso import NetworkConfig
from jaxrl_hpc.ops.optimise import OptimiserConfig


class NetworkAgentConfig(OptimiserConfig):
    """Of an agent with one torso, or several alike."""

    network: NetworkConfig = NetworkConfig()

    @property
    def hidden_widths(self) -> tuple[int, ...]:
        return self.network.hidden


class WindowAgentConfig(NetworkAgentConfig):
    """Of an agent that learns from windows of a replay, as long as its returns."""

    suitable_replay: ClassVar[str] = "uniform"
    if TYPE_CHECKING:
        n_step: int

    @property
    def window(self) -> int:
        """Steps of a replay sample."""
        return self.n_step
