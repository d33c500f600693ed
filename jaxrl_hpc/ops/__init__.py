"""Stateless maths: returns, losses, exploration, optimisation, statistics.

Functions for direct use are exported by this package and imported on first use:
`rl.ops.gae`, `rl.ops.huber`. Everything else is in its module.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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

_MODULES = {
    "advantages": ("gae", "vtrace"),
    "distributions": ("categorical", "gaussian"),
    "exploration": ("epsilon_greedy", "epsilon_ladder", "linear_decay"),
    "losses": ("huber", "select_action"),
    "noise": ("ornstein_uhlenbeck",),
    "returns": ("fold_window", "sequence_returns"),
    "comparison": ("performance_profile", "probability_of_improvement"),
    "statistics": ("bootstrap_interval", "interquartile_mean", "score"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_MODULES})
