"""The film's solver against known laws and an independent one; the environment against its rules."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.envs.cahn_hilliard import Config, policies
from jaxrl_hpc.envs.cahn_hilliard.environment import CahnHilliard, State, load_target
from jaxrl_hpc.envs.cahn_hilliard.solver import MEAN, TIME_STEP, Film, advance, energy, film, phi_functions
from jaxrl_hpc.envs.cahn_hilliard.structure import WAVE_NUMBERS, structure
from jaxrl_hpc.envs.cahn_hilliard.target import annealed
from tests.tiers import quick

SIDE = 32


def smooth_field(seed: int = 0, size: int = SIDE) -> np.ndarray:
    """Waves of a few lengths around the mean m."""
    rng = np.random.default_rng(seed)
    x = np.arange(size) / size
    field = np.full((size, size), MEAN)
    for _ in range(8):
        a, b = rng.integers(-4, 5, 2)
        field += 0.15 * np.cos(2 * np.pi * (a * x[:, None] + b * x[None, :]) + rng.uniform(0, 6.28))
    return field - field.mean() + MEAN


def oracle(field: np.ndarray, temperature: float, time: float, steps: int) -> np.ndarray:
    """The equation itself, by explicit Runge-Kutta steps in double precision, in NumPy alone."""
    chi = 0.055 + 0.445 / 9 * (1 / temperature - 1)
    share = (1 - 0.15) / 2
    epsilon2 = 1.75**2 / (3 * share * (1 - share) * chi * 750**2)
    sigma = 36 * 750**2 / (share**2 * (1 - share) ** 2 * 1.75**2 * chi * 1100**2)
    k = 2 * np.pi * np.fft.fftfreq(len(field), 1 / len(field))
    k2 = k[:, None] ** 2 + k[None, :] ** 2

    def laplace(f):
        return np.fft.ifft2(-k2 * np.fft.fft2(f)).real

    def slope(c):
        return laplace(c**3 - c - epsilon2 * laplace(c)) - sigma * (c - 0.15)

    h = time / steps
    for _ in range(steps):
        k1 = slope(field)
        k2_ = slope(field + h / 2 * k1)
        k3 = slope(field + h / 2 * k2_)
        k4 = slope(field + h * k3)
        field = field + h / 6 * (k1 + 2 * k2_ + 2 * k3 + k4)
    return field


def test_converges_to_the_equation_with_the_time_step():
    """Second order: half the step, a quarter of the error against an independent solution."""
    start, temperature = smooth_field(), 0.6
    exact = oracle(start, temperature, 40 * TIME_STEP, 1_000)
    assert np.abs(exact - start).max() > 0.1  # something happens
    with jax.enable_x64(True):
        errors = [
            np.abs(advance(jnp.asarray(start), film(temperature), 40 * n, TIME_STEP / n) - exact).max()
            for n in (1, 2, 4, 8)
        ]
    ratios = np.array(errors[:-1]) / errors[1:]
    assert (ratios > 3.5).all() and (ratios < 4.5).all()
    assert errors[0] < 0.04  # of the step that episodes take


def test_single_precision_is_enough():
    start = smooth_field(1)
    single = advance(jnp.asarray(start, jnp.float32), film(0.5), 200)
    with jax.enable_x64(True):
        double = advance(jnp.asarray(start), film(0.5), 200)
    np.testing.assert_allclose(single, double, atol=2e-3)


def test_phi_functions_of_single_precision():
    """Against double precision: the Taylor series, and the quotients where they are safe."""
    z = -np.logspace(-8, 3, 200)
    power, first, second = np.ones_like(z), np.zeros_like(z), np.zeros_like(z)
    for n in range(40):
        first, second = first + power / math.factorial(n + 1), second + power / math.factorial(n + 2)
        power = power * z
    far = z < -2
    first = np.where(far, np.expm1(z) / z, first)
    second = np.where(far, (np.expm1(z) / z - 1) / z, second)
    found = phi_functions(jnp.asarray(z, jnp.float32))
    np.testing.assert_allclose(found[0], first, rtol=2e-6)
    np.testing.assert_allclose(found[1], second, rtol=2e-6)
    np.testing.assert_array_equal(phi_functions(jnp.zeros(1)), [[1.0], [0.5]])


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_it_is_stable_from_noise_at_every_temperature(temperature):
    start = 0.005 * np.random.default_rng(5).uniform(-1, 1, (64, 64))
    field = advance(jnp.asarray(start, jnp.float32), film(temperature), 30 * 67)
    assert 0.5 < float(jnp.abs(field).max()) < 1.1


def test_mass():
    """Conserved without σ; with it the mean relaxes to m as the equation says."""
    start = jnp.asarray(smooth_field(2) + 0.1, jnp.float32)
    stiffness, repulsion = film(0.5)
    assert abs(float(advance(start, Film(stiffness, 0.0), 300).mean() - start.mean())) < 1e-5
    relaxed = advance(start, film(0.5), 100).mean()
    expected = MEAN + (start.mean() - MEAN) * np.exp(-TIME_STEP * repulsion * 100)
    np.testing.assert_allclose(relaxed, expected, atol=1e-5)


@pytest.mark.parametrize("temperature", quick([0.2, 0.9], [0.2]))
def test_energy_never_rises(temperature):
    coefficients = film(temperature)
    field, values = jnp.asarray(smooth_field(3), jnp.float32), []
    for _ in range(20):
        values.append(float(energy(field, coefficients)))
        field = advance(field, coefficients, 10)
    assert np.diff(values).max() < 1e-6 and values[-1] < values[0] - 1e-3


def test_order_appears_below_the_transition():
    """Small waves of the preferred length grow at T = 0.9 and vanish at T = 1."""
    x = jnp.arange(64) / 64
    wave = MEAN + 0.01 * jnp.cos(2 * jnp.pi * 9 * x)[:, None] * jnp.ones(64)
    assert advance(wave, film(0.9), 500).std() > 2 * wave.std()
    assert advance(wave, film(1.0), 500).std() < wave.std()


@pytest.mark.parametrize(
    ("temperature", "share"),
    quick([(0.9, 1.0), (0.6, 0.97), (0.3, 0.89), (0.1, 0.54)], [(0.9, 1.0), (0.1, 0.54)]),
)
def test_waves_grow_at_the_stated_share_of_their_true_rate(temperature, share):
    """The fastest of the linearised equation, d log c / dt = k² (1 − 3 m²) − ε² k⁴ − σ."""
    stiffness, repulsion = (float(x) for x in film(temperature))
    waves = np.arange(1, 33)
    k2 = (2 * np.pi * waves) ** 2
    rates = k2 * (1 - 3 * MEAN**2) - stiffness * k2**2 - repulsion
    number = waves[rates.argmax()]
    with jax.enable_x64(True):
        x = jnp.arange(64) / 64
        wave = MEAN + 1e-9 * jnp.cos(2 * jnp.pi * number * x)[:, None] * jnp.ones(64)
        early, late = (advance(wave, film(temperature), steps).std() for steps in (10, 30))
    np.testing.assert_allclose(np.log(late / early) / (20 * TIME_STEP * rates.max()), share, atol=0.01)


@pytest.mark.parametrize("size", [64, 128])
def test_structure_of_a_wave(size):
    """A wave of n periods stands at q = 2πn/128, whichever way it runs, at any resolution."""
    x = jnp.arange(size) / size
    wave = jnp.cos(2 * jnp.pi * 10 * x)[:, None] * jnp.ones(size)
    seen = np.asarray(structure(wave))
    peak = WAVE_NUMBERS[seen.argmax()]
    assert abs(peak - 2 * np.pi * 10 / 128) < 0.011
    assert seen[np.abs(WAVE_NUMBERS - peak) > 0.06].max() < 1e-3 * seen.max()
    np.testing.assert_allclose(structure(wave.T), seen, atol=1e-6)
    # two of the ring's entries carry 1/2 each; the ring of radius 10 has 60 entries
    ring = np.hypot(*np.meshgrid(*[np.fft.fftfreq(size, 1 / size)] * 2))
    entries = (np.rint(ring) == 10).sum()
    exact = 2 * np.pi * 10 / 128 * 1.0 / entries
    at_peak = np.interp(2 * np.pi * 10 / 128, WAVE_NUMBERS, seen)
    np.testing.assert_allclose(at_peak, exact, rtol=0.08)  # read between points


@pytest.mark.full
def test_the_stored_target_is_the_annealed_one():
    np.testing.assert_allclose(load_target(64), annealed(64), atol=0.02 * load_target(64).max())


def test_rules_of_the_environment():
    env = CahnHilliard(Config(size=64, horizon=3, solver_steps=5))
    params = env.default_params
    obs, state = env.reset_env(jax.random.key(0), params)
    assert obs.shape == (201,) and obs[0] == 1.0 and np.abs(state.field).max() <= 0.005
    step = jax.jit(env.step_env)
    for action, temperature in ((0, 0.9), (2, 1.0), (2, 1.0)):  # 1 is the hottest
        obs, state, reward, terminated, _ = step(jax.random.key(1), state, action, params)
        assert np.isclose(obs[0], temperature) and not terminated
        seen = np.asarray(structure(state.field))
        np.testing.assert_allclose(obs[1:], seen / env.target.max(), rtol=1e-5)
        np.testing.assert_allclose(reward, -np.mean(((seen - env.target) / env.target.max()) ** 2), rtol=1e-5)
    assert env.is_truncated(state, params)
    cold = State(state.field, jnp.float32(0.1), jnp.int32(0))
    assert np.isclose(step(jax.random.key(1), cold, 0, params)[0][0], 0.1)


@pytest.mark.full
def test_rules_go_where_they_want():
    env = CahnHilliard(Config(size=64, horizon=6, solver_steps=2))
    keys = jax.random.split(jax.random.key(0), 2)
    constant = policies.follow(env, policies.constant(0.7, 6), keys)

    def act(carry, obs, key):
        return jnp.int32(0 if obs[0] > 0.75 else 1), carry

    episode = policies.record(env, act, (), jax.random.key(0))
    np.testing.assert_allclose(episode.temperature, [1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7], atol=1e-6)
    state = env.reset_env(keys[0], env.default_params)[1]
    total = 0.0
    for action in (0, 0, 0, 1, 1, 1):
        _, state, reward, _, _ = env.step_env(keys[0], state, action, env.default_params)
        total += reward
    np.testing.assert_allclose(constant[0], total, rtol=1e-4)
    assert len(policies.rules(30)) == 12
