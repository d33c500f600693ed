"""flax.linen networks: torsos and heads. The most useful ones are exported by this package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_hpc.lazy import lazy_names

if TYPE_CHECKING:
    from jaxrl_hpc.networks.heads import QNetwork as QNetwork
    from jaxrl_hpc.networks.torso import MLP as MLP
    from jaxrl_hpc.networks.torso import NetworkConfig as NetworkConfig
    from jaxrl_hpc.networks.torso import as_features as as_features
    from jaxrl_hpc.networks.torso import make_torso as make_torso

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        f"{__name__}.heads": ("QNetwork",),
        f"{__name__}.torso": ("MLP", "NetworkConfig", "as_features", "make_torso"),
    },
)
