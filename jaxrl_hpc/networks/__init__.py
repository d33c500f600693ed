"""flax.linen networks: torsos and heads. What your own agents need most are names of this package."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxrl_hpc.networks.heads import QNetwork as QNetwork
    from jaxrl_hpc.networks.torso import MLP as MLP
    from jaxrl_hpc.networks.torso import NetworkConfig as NetworkConfig
    from jaxrl_hpc.networks.torso import as_features as as_features
    from jaxrl_hpc.networks.torso import make_torso as make_torso

_HOME = {
    "QNetwork": "heads",
    "MLP": "torso",
    "NetworkConfig": "torso",
    "as_features": "torso",
    "make_torso": "torso",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
