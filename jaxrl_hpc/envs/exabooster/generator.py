"""A generator of GMPS ticks, fitted to the published statistics of the BOOSTR recording.

With e = B:IMINER, v = B:VIMIN − B_VIMIN chosen after seeing e_t, and k the supercycle phase (901 ticks),

    e_{t+1} = a e_t + 10 (g2 v_{t−2} + g3 v_{t−3}) + f_{k(t+1)} + burst_{t+1} + d_t + σ_w w_t
    f_k     = −(k0 p_k + k1 q_k),   p_k = I_k (I_{k+1} − I_{k−1})/2 over its std,   q_k = (I_k − 3300)/2400
    burst_t = A_b sin(2π t/10.8 + ψ) while 846 ≤ k < 900
    d_{t+1} = .999 d_t + σ_d ξ_t

I is the Main Injector's bus current (I:IB), whose ramp disturbs the Booster's supply through the shared power
line; the burst accompanies the slow-spill flat-top. The plant responds to an action only after three ticks,
so a controller has to predict. The machine's regulator is a PI controller:

    β_t = β_{t−1} + γ e_t,   v_t = −α e_t − β_t

It and every observer see e rounded to the grid of the log. Sources: St. John et al., "Real-time artificial
intelligence for accelerator control", PRAB 24, 104601 (2021); Kafkes and St. John, "BOOSTR: A Dataset for
Accelerator Control Systems", Data 6, 42 (2021).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_hpc.envs.exabooster.channels import ERROR_GRID, TICK_SECONDS
from jaxrl_hpc.types import Array

SUPERCYCLE = 901  # ticks: 40 Main Injector cycles of 21 and one slow spill of 61
BURST_FIRST, BURST_LAST = 846, 900  # phases with first ≤ k < last
BURST_PERIOD = 10.8
BURST_REPEAT = 54  # five periods: the tick counter may wrap here without a jump of the sine
DRIFT_DECAY = 0.999
PROPORTIONAL, INTEGRAL = 0.10, 7.535e-5  # the regulator's α and γ

# fmt: off
_CYCLE = np.array([
    370, 370, 370, 370, 420, 1000, 1860, 2740, 3620, 4500, 5380, 6250, 7000,
    7017, 6345, 5192, 4065, 2980, 1880, 870, 430,
], np.float64)
# fmt: on
_SPILL = np.concatenate([_CYCLE[:13], np.full(40, 7056.0), _CYCLE[13:]])
CURRENT = np.concatenate([np.tile(_CYCLE, 40), _SPILL])  # [901] I:IB without its noise
CURRENT_NOISE = 5.0


def _slope(current: np.ndarray) -> np.ndarray:
    return np.roll(current, -1) - np.roll(current, 1)  # I_{k+1} − I_{k−1}


RAMP = CURRENT * _slope(CURRENT) / 2 / np.std(_CYCLE * _slope(_CYCLE) / 2)  # [901] p_k
MDAT40 = np.roll(CURRENT, -1) - 80.0 * np.sign(_slope(CURRENT)) * (np.abs(_slope(CURRENT)) / 2 > 100)  # [901]

SET_POINT_JUMP, SET_POINT_STEP, SET_POINT_PULL = 6.5e-4, 0.001, 0.634  # B_VIMIN's random walk
SET_POINT_STD = float(np.sqrt(SET_POINT_STEP * SET_POINT_PULL / 2))
LINAC_SLOW, LINAC_FAST, LINAC_WHITE, LINAC_MEAN = (15.9, 1 / 60), (0.19, 8.0), 0.01, -9.0  # (σ mHz, ω0 1/s)


@struct.dataclass
class Plant:
    """One fit of the plant. Leaves [] or, stacked, [number of plants]."""

    pole: Array | float  # a
    gain_2: Array | float  # g2
    gain_3: Array | float  # g3
    noise: Array | float  # σ_w
    ramp: Array | float  # k0
    current: Array | float  # k1
    burst: Array | float  # A_b
    drift: Array | float  # σ_d


# The default, and two more on the same ridge of the fit: alike in their statistics, not in their response.
PLANTS = (
    Plant(0.86, 0.33, 0.08, 0.066, 0.035, 0.010, 0.13, 0.0017),
    Plant(0.80, 0.304, 0.089, 0.058, 0.047, 0.011, 0.168, 0.0022),
    Plant(0.93, 0.42, 0.041, 0.064, 0.025, 0.012, 0.085, 0.0017),
)


@struct.dataclass
class Machine:
    """State that does not depend on the controller. All leaves []."""

    phase: Array  # int32 k, in the supercycle
    tick: Array  # int32 t modulo BURST_REPEAT
    burst_phase: Array  # ψ
    drift: Array  # d
    linac: tuple[Array, Array, Array, Array]  # LINFRQ's slow and fast parts, each value and scaled velocity
    set_point: Array  # B_VIMIN − VIMIN_CENTRE


@struct.dataclass
class Loop:
    """State of the plant under one controller. All leaves [] but for the memory of a learned plant."""

    error: Array  # e, not rounded
    inputs: tuple[Array, Array, Array]  # v_{t−1}, v_{t−2}, v_{t−3}
    vimin: Array  # VIMIN_{t−1} − VIMIN_CENTRE
    memory: tuple = ()


class Signals(NamedTuple):
    """Inputs of one tick, the same for every controller. All []."""

    forcing: Array  # everything added to a·e and the response to v
    noise: Array  # the standard normal w_t inside it
    set_point_change: Array  # ΔB
    linac: Array  # LINFRQ
    current: Array  # IB
    mdat40: Array


def measured(error: Array) -> Array:
    """The error as logged: rounded to the grid."""
    return ERROR_GRID * jnp.round(error * (1 / ERROR_GRID))


def materialise(x: Array) -> Array:
    """x itself, exactly, as a reduction: XLA does not fuse a reduction into its many users.

    Without it every leaf of the state recomputes the whole tick inside `where(done, reset, step)`, which
    costs a factor of three on CPUs; optimization_barrier is removed there before fusion.
    """
    return jnp.sum(jnp.where(jnp.arange(2) == 0, x, jnp.zeros_like(x)))


def _critically_damped(std: float, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Exact tick of x″ + 2ω x′ + ω² x = noise for (x, x′/ω): transition [2, 2], noise factor [2, 2].

    In these coordinates the stationary covariance is σ² times the identity.
    """
    h = rate * TICK_SECONDS
    transition = np.exp(-h) * np.array([[1 + h, h], [-h, 1 - h]])
    covariance = std**2 * (np.eye(2) - transition @ transition.T)
    return transition, np.linalg.cholesky(covariance)


_SLOW = _critically_damped(*LINAC_SLOW)
_FAST = _critically_damped(*LINAC_FAST)


def _damped_step(coefficients: tuple, x: Array, y: Array, first: Array, second: Array) -> tuple[Array, Array]:
    (a, b), (c, d) = coefficients[0].astype(np.float32)
    (p, _), (q, r) = coefficients[1].astype(np.float32)
    return a * x + b * y + p * first, c * x + d * y + q * first + r * second


def _draw(key: Array, normals: int, fractions: int) -> tuple[Array, Array]:
    """Standard normals and numbers in (0, 1) from one call: each call costs compile time and a hash.

    Normals are made as jax.random.normal makes them.
    """
    low = np.nextafter(np.float32(-1), np.float32(0))
    uniform = jax.random.uniform(key, (normals + fractions,), minval=low, maxval=1.0)
    return np.float32(np.sqrt(2)) * jax.lax.erf_inv(uniform[:normals]), 0.5 * (uniform[normals:] + 1)


def initial_machine(key: Array, plant: Plant) -> Machine:
    """A stationary draw. Consumes key."""
    normal, fraction = _draw(key, 6, 2)
    return Machine(
        phase=jnp.minimum((SUPERCYCLE * fraction[0]).astype(jnp.int32), SUPERCYCLE - 1),
        tick=jnp.zeros((), jnp.int32),
        burst_phase=2 * np.pi * fraction[1],
        drift=plant.drift / np.sqrt(1 - DRIFT_DECAY**2) * normal[0],
        linac=(
            LINAC_SLOW[0] * normal[2],
            LINAC_SLOW[0] * normal[3],
            LINAC_FAST[0] * normal[4],
            LINAC_FAST[0] * normal[5],
        ),
        set_point=SET_POINT_STEP * jnp.round(SET_POINT_STD / SET_POINT_STEP * normal[1]),
    )


def initial_loop() -> Loop:
    """At rest; the warm-up ticks under the regulator fill it."""
    zero = jnp.zeros(())
    return Loop(error=zero, inputs=(zero, zero, zero), vimin=zero)


def _ahead(phase: Array, ticks: int) -> Array:
    later = phase + ticks  # a comparison instead of %, which does not vectorise
    return jnp.where(later >= SUPERCYCLE, later - SUPERCYCLE, later)


def burst_at(plant: Plant, machine: Machine, ahead: int) -> Array:
    """The burst `ahead` ticks after the machine's."""
    phase = _ahead(machine.phase, ahead)
    angle = (2 * np.pi / BURST_PERIOD) * (machine.tick + ahead).astype(jnp.float32) + machine.burst_phase
    active = (phase >= BURST_FIRST) & (phase < BURST_LAST)
    return jnp.where(active, plant.burst * jnp.sin(angle), 0.0)


def ramp_at(plant: Plant, machine: Machine, ahead: int) -> Array:
    """The Main Injector's disturbance f_k `ahead` ticks after the machine's."""
    phase = _ahead(machine.phase, ahead)
    ramp = jnp.asarray(RAMP, jnp.float32)[phase]
    current = jnp.asarray((CURRENT - 3300.0) / 2400.0, jnp.float32)[phase]
    return -(plant.ramp * ramp + plant.current * current)


def advance(key: Array, machine: Machine, plant: Plant) -> tuple[Machine, Signals]:
    """One tick of everything outside of the control loop. Consumes key."""
    normal, fraction = _draw(key, 8, 1)
    chance = fraction[0]
    noise, drift, slow_1, slow_2, fast_1, fast_2, white, ripple = (normal[i] for i in range(8))

    up = 0.5 * (1 - machine.set_point / SET_POINT_PULL)
    jump = jnp.where(chance < SET_POINT_JUMP * up, SET_POINT_STEP, -SET_POINT_STEP)
    change = jnp.where(chance < SET_POINT_JUMP, jump, 0.0)

    forcing = ramp_at(plant, machine, 1) + burst_at(plant, machine, 1) + machine.drift + plant.noise * noise
    phase = _ahead(machine.phase, 1)
    linac = (
        *_damped_step(_SLOW, *machine.linac[:2], slow_1, slow_2),
        *_damped_step(_FAST, *machine.linac[2:], fast_1, fast_2),
    )
    machine = Machine(
        phase=phase,
        tick=jnp.where(machine.tick + 1 == BURST_REPEAT, 0, machine.tick + 1),
        burst_phase=machine.burst_phase,
        drift=DRIFT_DECAY * machine.drift + plant.drift * drift,
        linac=linac,
        set_point=machine.set_point + change,
    )
    signals = Signals(
        forcing=forcing,
        noise=noise,
        set_point_change=change,
        linac=LINAC_MEAN + linac[0] + linac[2] + LINAC_WHITE * white,
        current=jnp.asarray(CURRENT, jnp.float32)[phase] + CURRENT_NOISE * ripple,
        mdat40=jnp.asarray(MDAT40, jnp.float32)[phase],
    )
    return machine, signals


def respond(plant: Plant, loop: Loop, vimin: Array, set_point: Array, signals: Signals) -> Loop:
    """The plant's tick under v_t = vimin − set_point. Past inputs keep the set point of their time."""
    response = 10 * (plant.gain_2 * loop.inputs[1] + plant.gain_3 * loop.inputs[2])
    error = plant.pole * loop.error + response + signals.forcing - 10 * signals.set_point_change
    error = materialise(error)
    return Loop(error, (vimin - set_point, *loop.inputs[:2]), vimin, loop.memory)


def regulate(error: Array, beta: Array) -> tuple[Array, Array]:
    """The machine's own PI regulator: measured error, β_{t−1} -> v_t, β_t."""
    beta = beta + INTEGRAL * error
    return -PROPORTIONAL * error - beta, beta
