"""The Cahn–Hilliard equation of a block copolymer film (Ohta–Kawasaki), by a semi-implicit spectral method.

    ∂c/∂t = ∇²(c³ − c) − ε² ∇⁴c − σ (c − m)

on a periodic square of side 1. Temperature enters by the interaction strength χ,

    χ(T) = 0.055 + (0.445 / 9) (1/T − 1),   m_s = (1 − m) / 2
    ε² = L_k² / (3 m_s (1 − m_s) χ L²),     σ = 36 L² / (m_s² (1 − m_s)² L_k² χ N²)

so that the wavelength (ε²/σ)^(1/4) does not depend on it, while order appears below T ≈ 0.98. A step takes
the stiff linear part, and 2k² of the nonlinear one, at its end (Eyre's splitting):

    ĉ' = [ĉ − Δt k² FFT(c³ − 3c) + Δt σ m̂] / [1 + Δt (ε² k⁴ + 2 k² + σ)]

With σ = 0 it keeps the mean exactly; with σ the mean relaxes to m. The step is stable and coarse: the
fastest waves grow at a fifth to two thirds of their true rates (docs/environments.md has the figures).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.types import Array

MEAN = 0.15  # m
KUHN, SIDE, SEGMENTS = 1.75, 750.0, 1100.0  # L_k and L in nm, N
TIME_STEP = 4.8e-5


class Film(NamedTuple):
    """Coefficients at one temperature."""

    stiffness: Array | float  # ε²
    repulsion: Array | float  # σ


def film(temperature: Array | float) -> Film:
    interaction = 0.055 + (0.445 / 9) * (1.0 / temperature - 1.0)  # χ
    share = (1 - MEAN) / 2
    both = share * (1 - share)
    stiffness = KUHN**2 / (3 * both * interaction * SIDE**2)
    return Film(stiffness, 36 * SIDE**2 / (both**2 * KUHN**2 * interaction * SEGMENTS**2))


def squared_wave_numbers(size: int) -> np.ndarray:
    """k² of the half spectrum, [size, size // 2 + 1] float32."""
    rows = 2 * np.pi * np.fft.fftfreq(size, 1 / size)
    columns = 2 * np.pi * np.fft.rfftfreq(size, 1 / size)
    return (rows[:, None] ** 2 + columns[None, :] ** 2).astype(np.float32)


def advance(
    field: Array, coefficients: Film, steps: int, time_step: float = TIME_STEP, mean: float = MEAN
) -> Array:
    """The field [n, n] after some solver steps."""
    size = field.shape[-1]
    k2 = jnp.asarray(squared_wave_numbers(size))
    stiffness, repulsion = coefficients
    source = jnp.zeros(k2.shape).at[0, 0].set(time_step * repulsion * mean * size**2)
    divisor = 1.0 + time_step * (stiffness * k2**2 + 2.0 * k2 + repulsion)

    def one(_: int, pair: tuple[Array, Array]) -> tuple[Array, Array]:
        c, spectrum = pair
        spectrum = (spectrum - time_step * k2 * jnp.fft.rfft2(c**3 - 3.0 * c) + source) / divisor
        return jnp.fft.irfft2(spectrum, s=c.shape), spectrum

    return jax.lax.fori_loop(0, steps, one, (field, jnp.fft.rfft2(field)))[0]


def energy(field: Array, coefficients: Film, mean: float = MEAN) -> Array:
    """∫ (c²−1)²/4 + ε²/2 |∇c|² + σ/2 |∇⁻¹(c − m)|²: what the equation lets fall, at mean m."""
    size = field.shape[-1]
    k2 = jnp.asarray(squared_wave_numbers(size))
    weight = jnp.full(k2.shape, 2.0).at[:, 0].set(1.0)  # the half spectrum stands for both halves
    weight = weight.at[:, -1].set(1.0) if size % 2 == 0 else weight
    power = weight * jnp.abs(jnp.fft.rfft2(field - mean) / size**2) ** 2
    inverse = jnp.where(k2 > 0, 1.0 / jnp.maximum(k2, 1.0), 0.0)
    gradient = coefficients.stiffness * (k2 * power).sum() / 2
    long_range = coefficients.repulsion * (inverse * power).sum() / 2
    return ((field**2 - 1.0) ** 2).mean() / 4 + gradient + long_range
