"""Discrete action maps: index -> change of VIMIN in one tick.

EXARL takes the quantiles i/(n+1), i = 1…n, of the regulator's own changes, so that each action is in the
usual range of the machine. The default thirty come from the generator; a recording defines its own.
"""

from __future__ import annotations

import numpy as np

# fmt: off
QUANTILE_30 = np.array([
    -.0235, -.019, -.016, -.0135, -.012, -.010, -.009, -.0075, -.0065, -.005, -.004, -.003, -.002, -.001, 0,
    .0005, .0015, .0025, .0035, .0045, .0055, .0065, .008, .009, .0105, .0115, .0135, .0155, .018, .0225,
])
# fmt: on
FIXED_7 = np.array([-5e-3, -1e-3, -1e-4, 0.0, 1e-4, 1e-3, 5e-3])


def _interpolate(levels: np.ndarray) -> np.ndarray:
    """The default map's distribution at other levels, with linearly extrapolated tails."""
    known = np.arange(1, 31) / 31
    inside = np.interp(levels, known, QUANTILE_30)
    below, above = np.minimum(levels - known[0], 0), np.maximum(levels - known[-1], 0)
    slope_low, slope_high = (np.diff(QUANTILE_30)[i] / np.diff(known)[i] for i in (0, -1))
    return inside + below * slope_low + above * slope_high


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
        deltas = _interpolate(levels)
    deltas[np.argmin(np.abs(deltas))] = 0.0
    return deltas


def action_map(name: str, changes: np.ndarray | None = None) -> np.ndarray:
    """`fixed7` or `quantile:N` -> changes of VIMIN [n]."""
    if name == "fixed7":
        return FIXED_7.copy()
    return quantile_map(int(name.removeprefix("quantile:")), changes)
