"""How a sharded run scales: measured on this machine, modelled, extrapolated.

To use the model of a job directly, with `rl.scaling` as `scaling`:
`scaling.simulate(scaling.Costs(…), scaling.JobPlan("async", learners=1, actors=8))`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_hpc.lazy import lazy_names

if TYPE_CHECKING:
    from jaxrl_hpc.scaling.costs import Costs as Costs
    from jaxrl_hpc.scaling.costs import JobPlan as JobPlan
    from jaxrl_hpc.scaling.model import LatencyBandwidth as LatencyBandwidth
    from jaxrl_hpc.scaling.workflow_models import simulate as simulate

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        f"{__name__}.costs": ("Costs", "JobPlan"),
        f"{__name__}.model": ("LatencyBandwidth",),
        f"{__name__}.workflow_models": ("simulate",),
    },
)
