"""The circularly averaged structure vector of a field, as a scattering experiment measures it.

    S(q) = q ⟨|FFT c|⟩ over directions,   200 values of q from 0 to 2 rad per 1/128 of the side

Magnitudes are averaged over rings of one wave number each, and S is read between rings linearly. With the
unit of q fixed to a side of 128, films of other resolutions look alike, as far as they resolve.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.types import Array

POINTS = 200
LARGEST = 2.0  # rad per 1/128 of the side
REFERENCE = 128
WAVE_NUMBERS = np.linspace(0.0, LARGEST, POINTS, dtype=np.float32)  # q


@functools.cache
def _rings(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Ring of every entry of the half spectrum [n, n/2 + 1], and how many entries it stands for."""
    rows = np.fft.fftfreq(size, 1 / size)
    columns = np.fft.rfftfreq(size, 1 / size)
    ring = np.rint(np.hypot(rows[:, None], columns[None, :])).astype(np.int32)
    twice = np.full(ring.shape, 2.0, np.float32)
    twice[:, 0] = 1.0
    if size % 2 == 0:
        twice[:, -1] = 1.0
    return ring, twice


def structure(field: Array) -> Array:
    """S [200] of a field [n, n], per point of the grid."""
    size = field.shape[-1]
    ring, twice = _rings(size)
    count = size // 2 + 1  # rings that lie inside the spectrum
    inside = np.minimum(ring, count)
    magnitude = jnp.abs(jnp.fft.rfft2(field - field.mean())) / size**2
    sums = jax.ops.segment_sum((magnitude * twice).reshape(-1), inside.reshape(-1), count + 1)[:count]
    entries = np.bincount(inside.reshape(-1), twice.reshape(-1), count + 1)[:count]
    mean = sums / jnp.asarray(entries, jnp.float32)
    q = 2 * np.pi * np.arange(count, dtype=np.float32) / REFERENCE
    return jnp.interp(WAVE_NUMBERS, q, q * mean, right=0.0)
