"""Stateless maths: returns, losses, exploration, optimisation, statistics.

Functions for direct use are exported by this package and imported on first use:
`rl.ops.gae`, `rl.ops.huber`. Everything else is in its module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_hpc.lazy import lazy_names

if TYPE_CHECKING:
    from jaxrl_hpc.ops.advantages import gae as gae
    from jaxrl_hpc.ops.advantages import vtrace as vtrace
    from jaxrl_hpc.ops.comparison import performance_profile as performance_profile
    from jaxrl_hpc.ops.comparison import probability_of_improvement as probability_of_improvement
    from jaxrl_hpc.ops.distributions import categorical as categorical
    from jaxrl_hpc.ops.distributions import gaussian as gaussian
    from jaxrl_hpc.ops.exploration import epsilon_greedy as epsilon_greedy
    from jaxrl_hpc.ops.exploration import epsilon_ladder as epsilon_ladder
    from jaxrl_hpc.ops.exploration import linear_decay as linear_decay
    from jaxrl_hpc.ops.losses import huber as huber
    from jaxrl_hpc.ops.losses import select_action as select_action
    from jaxrl_hpc.ops.noise import ornstein_uhlenbeck as ornstein_uhlenbeck
    from jaxrl_hpc.ops.returns import fold_window as fold_window
    from jaxrl_hpc.ops.returns import sequence_returns as sequence_returns
    from jaxrl_hpc.ops.statistics import bootstrap_interval as bootstrap_interval
    from jaxrl_hpc.ops.statistics import interquartile_mean as interquartile_mean
    from jaxrl_hpc.ops.statistics import score as score

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        f"{__name__}.advantages": ("gae", "vtrace"),
        f"{__name__}.distributions": ("categorical", "gaussian"),
        f"{__name__}.exploration": ("epsilon_greedy", "epsilon_ladder", "linear_decay"),
        f"{__name__}.losses": ("huber", "select_action"),
        f"{__name__}.noise": ("ornstein_uhlenbeck",),
        f"{__name__}.returns": ("fold_window", "sequence_returns"),
        f"{__name__}.comparison": ("performance_profile", "probability_of_improvement"),
        f"{__name__}.statistics": ("bootstrap_interval", "interquartile_mean", "score"),
    },
)
