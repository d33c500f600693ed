"""A run state that any step determines, so that a restored one can be checked bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxrl_hpc.types import Ring


def rows(first: int, end: int) -> dict[str, np.ndarray]:
    """Replay rows by their number since the beginning."""
    number = np.arange(first, end)
    obs = (number[:, None] * 7919 + np.arange(5)) % 10007
    return {"obs": obs.astype(np.float32), "last": number % 3 == 0}


def ring_at(written: int, slots: int) -> Ring:
    data = {name: np.full((slots, *x.shape[1:]), 9, x.dtype) for name, x in rows(0, 1).items()}
    first = max(0, written - slots)
    for name, new in rows(first, written).items():
        data[name][np.arange(first, written) % slots] = new
    return Ring(data=data, written=np.int32(written))


def state_at(step: int, slots: int = 500, rows_per_step: int = 37) -> dict[str, Any]:
    big = np.arange(200_000, dtype=np.float32)  # 800 kB: four blocks
    big[step % big.size] = -step  # accumulated changes would hide a stale block
    return {
        "seed0": {
            "replay": ring_at(step * rows_per_step, slots),
            "tree": big,
            "w": np.full((3, 2), step / 7),
        },
        "seed1": {"replay": ring_at(step * rows_per_step, slots), "count": np.int32(step)},
    }
