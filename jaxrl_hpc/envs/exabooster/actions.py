"""Discrete action maps: index -> change of VIMIN in one tick.

EXARL takes the quantiles i/(n+1), i = 1…n, of the regulator's own changes, so that each action is one the
machine is used to. The default thirty come from the generator; a recording brings its own.
"""

from __future__ import annotations

import numpy as np

QUANTILE_30 = np.array(
    [-0.0235, -0.019, -0.016, -0.0135, -0.012, -0.010, -0.009, -0.0075, -0.0065, -0.005]
    + [-0.004, -0.003, -0.002, -0.001, 0.0, 0.0005, 0.0015, 0.0025, 0.0035, 0.0045]
    + [0.0055, 0.0065, 0.008, 0.009, 0.0105, 0.0115, 0.0135, 0.0155, 0.018, 0.0225]
)
FIXED_7 = np.array([-5e-3, -1e-3, -1e-4, 0.0, 1e-4, 1e-3, 5e-3])


def quantile_map(count: int, changes: np.ndarray | None = None) -> np.ndarray:
    """`count` actions: quantiles of recorded changes of VIMIN, or of the default map's distribution.

    The quantile nearest to zero becomes zero, so that holding VIMIN is always an action.
    """
    levels = np.arange(1, count + 1) / (count + 1)
    if changes is not None:
        deltas = np.quantile(changes, levels)
    elif count == 30:
        return QUANTILE_30.copy()
    else:
        deltas = np.interp(levels, np.arange(1, 31) / 31, QUANTILE_30)
    deltas[np.argmin(np.abs(deltas))] = 0.0
    return deltas


def action_map(name: str, changes: np.ndarray | None = None) -> np.ndarray:
    """`fixed7` or `quantile:N` -> changes of VIMIN [n]."""
    if name == "fixed7":
        return FIXED_7.copy()
    return quantile_map(int(name.removeprefix("quantile:")), changes)
