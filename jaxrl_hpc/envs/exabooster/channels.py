"""The recorded channels: names, scales, and the published statistics of the BOOSTR recording.

BOOSTR (Kafkes and St. John, Data 2021; Zenodo 4088982, CC-BY) logs the Fermilab Booster's gradient magnet
power supply at 15 Hz for 24 hours from 2020-03-10 05:00. `B_VIMIN` is the operator's set point, `B:VIMIN`
the compensated value that the regulator sends, `B:IMINER` the scaled error of the minimum magnet current.

VIMIN and B_VIMIN are kept as offsets from `VIMIN_CENTRE` everywhere inside: at 103.4 a float32 resolves only
8e-6, a thousandth of a typical action, and the sum of many actions would show it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

TICK_SECONDS = 1.0 / 15.0
NAMES = ("B:VIMIN", "B:IMINER", "B:LINFRQ", "I:IB", "I:MDAT40")
SET_POINT_NAME = "B_VIMIN"
ERROR_GRID = 0.005  # B:IMINER is logged in these units

VIMIN_CENTRE = 103.415
CENTRE = np.array([VIMIN_CENTRE, 0.0, -9.0, 3300.0, 3300.0])
SCALE = np.array([0.033, 0.21, 15.9, 2400.0, 2400.0])

# The first 250k rows, which EXARL scales by.
MINIMUM = np.array([103.2470, -1.2103, -44.10, 345.9, 369.4])
MAXIMUM = np.array([103.9861, 1.1797, 37.33, 7059.7, 7033.4])

VIMIN_LOW, VIMIN_HIGH = 103.1, 103.6  # EXARL's outer bounds of B:VIMIN
ERROR_LIMIT = 2.0  # |B:IMINER| that ends an episode


class Target(NamedTuple):
    """Published statistics of one channel."""

    high_pass_std: float  # of x minus its centred one-second (15 tick) mean
    minute_std: float  # of one-minute means
    median_step: float  # median of the nonzero |x_{t+1} - x_t|


TARGETS = {
    "B:VIMIN": Target(0.0268, 0.0185, 0.0078),
    "B:IMINER": Target(0.2246, 0.0406, 0.080),
    "B:LINFRQ": Target(0.129, 15.90, 0.059),
    "I:IB": Target(1575.0, 10.8, 897.5),
    "I:MDAT40": Target(1562.0, 6.6, 917.8),
}
MEAN_ABS_ERROR = 0.1765
ERROR_IQR = 0.26
# Lags 1–3 measured in June 2019, 4–21 implied by the AR(56) fitted to the same month.
# fmt: off
ERROR_AUTOCORRELATION = np.array([
    .807, .444, .0055, -.35, -.52, -.49, -.27, .05, .35, .55, .58,
    .44, .17, -.12, -.35, -.43, -.35, -.12, .19, .47, .64,
])
# fmt: on
ERROR_CORRELATION = {"B:VIMIN": -0.63, "I:MDAT40": -0.21, "I:IB": -0.1, "B:LINFRQ": 0.0}


def standardise(rows: np.ndarray) -> np.ndarray:
    """Physical rows […, 5] -> what observations and networks see. VIMIN absolute."""
    return ((rows - CENTRE) / SCALE).astype(np.float32)
