"""The Cahn–Hilliard equation of a block copolymer film (Ohta–Kawasaki), by an exponential spectral method.

    ∂c/∂t = ∇²(c³ − c) − ε² ∇⁴c − σ (c − m)

on a periodic square of side 1. Temperature enters by the interaction strength χ,

    χ(T) = 0.055 + (0.445 / 9) (1/T − 1),   m_s = (1 − m) / 2
    ε² = L_k² / (3 m_s (1 − m_s) χ L²),     σ = 36 L² / (m_s² (1 − m_s)² L_k² χ N²)

so that the wavelength (ε²/σ)^(1/4) does not depend on it, while order appears below T ≈ 0.98. Of waves,

    dĉ/dt = −(ε² k⁴ + 2 k² + σ) ĉ + N(c),     N(c) = −k² FFT(c³ − 3c) + σ m̂

whose linear part, with Eyre's 2k² for stability, is integrated exactly and N along a line through its last
two values (exponential time differencing, ETD2 of Cox & Matthews 2002), with z = −Δt (ε² k⁴ + 2 k² + σ):

    ĉ' = e^z ĉ + Δt [φ₁(z) N + φ₂(z) (N − N_old)],   φ₁(z) = (e^z − 1) / z,   φ₂(z) = (φ₁(z) − 1) / z

Second order, at the two transforms per step of a first-order method; at a change of temperature N_old = N.
With σ = 0 it keeps the mean exactly; with σ the mean relaxes to m as e^(−σt).
"""

from __future__ import annotations

import math
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


def phi_functions(z: Array) -> tuple[Array, Array]:
    """φ₁ and φ₂, by their series near zero, where the quotients lose digits."""
    near = jnp.abs(z) < 0.5
    small, large = jnp.where(near, z, 0.0), jnp.where(near, -1.0, z)
    series = jnp.polyval(jnp.asarray([1 / math.factorial(n + 2) for n in range(8, -1, -1)], z.dtype), small)
    first = jnp.expm1(large) / large
    return jnp.where(near, 1.0 + small * series, first), jnp.where(near, series, (first - 1.0) / large)


def advance(
    field: Array, coefficients: Film, steps: int, time_step: float = TIME_STEP, mean: float = MEAN
) -> Array:
    """The field [n, n] after some solver steps."""
    size = field.shape[-1]
    k2 = jnp.asarray(squared_wave_numbers(size), field.dtype)
    stiffness, repulsion = coefficients
    source = jnp.zeros(k2.shape).at[0, 0].set(repulsion * mean * size**2)
    exponent = -time_step * (stiffness * k2**2 + 2.0 * k2 + repulsion)
    first, second = phi_functions(exponent)
    decay, newest, older = jnp.exp(exponent), time_step * (first + second), time_step * second

    def nonlinear(c: Array) -> Array:
        return source - k2 * jnp.fft.rfft2(c**3 - 3.0 * c)

    def one(_: int, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        c, spectrum, old = state
        new = nonlinear(c)
        spectrum = decay * spectrum + newest * new - older * old
        return jnp.fft.irfft2(spectrum, s=c.shape), spectrum, new

    return jax.lax.fori_loop(0, steps, one, (field, jnp.fft.rfft2(field), nonlinear(field)))[0]


def energy(field: Array, coefficients: Film, mean: float = MEAN) -> Array:
    """∫ (c²−1)²/4 + ε²/2 |∇c|² + σ/2 |∇⁻¹(c − m)|²: the energy that the equation decreases, at mean m."""
    size = field.shape[-1]
    k2 = jnp.asarray(squared_wave_numbers(size))
    weight = jnp.full(k2.shape, 2.0).at[:, 0].set(1.0)  # the half spectrum stands for both halves
    weight = weight.at[:, -1].set(1.0) if size % 2 == 0 else weight
    power = weight * jnp.abs(jnp.fft.rfft2(field - mean) / size**2) ** 2
    inverse = jnp.where(k2 > 0, 1.0 / jnp.maximum(k2, 1.0), 0.0)
    gradient = coefficients.stiffness * (k2 * power).sum() / 2
    long_range = coefficients.repulsion * (inverse * power).sum() / 2
    return ((field**2 - 1.0) ** 2).mean() / 4 + gradient + long_range
