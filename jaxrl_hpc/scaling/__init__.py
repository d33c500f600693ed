"""How a sharded run scales: measured on this machine, modelled, extrapolated.

The model of a job by itself, with `rl.scaling` as `scaling`:
`scaling.simulate(scaling.Costs(…), scaling.JobPlan("async", learners=1, actors=8))`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxrl_hpc.scaling.costs import Costs as Costs
    from jaxrl_hpc.scaling.costs import JobPlan as JobPlan
    from jaxrl_hpc.scaling.model import LatencyBandwidth as LatencyBandwidth
    from jaxrl_hpc.scaling.workflow_models import simulate as simulate

_HOME = {"Costs": "costs", "JobPlan": "costs", "LatencyBandwidth": "model", "simulate": "workflow_models"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
