"""The generator against its specification, the published statistics, and a second implementation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.envs.exabooster import channels, generator, statistics
from jaxrl_hpc.envs.exabooster.generator import PLANTS

SIZE = {"chains": 32, "ticks": 36_000}


@pytest.fixture(scope="module")
def rows():
    return statistics.simulate(jax.random.key(0), PLANTS[0], **SIZE)[0]


@pytest.fixture(scope="module")
def error(rows):
    return statistics.error_statistics(rows)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("mean_abs", 0.1645), ("iqr", 0.270), ("return_mean", -16.5), ("return_std", 4.6)],
)
def test_error_is_as_specified(error, name, expected):
    assert error[name] == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(
    ("channel", "name", "expected"),
    [
        (0, "high_pass_std", 0.0228),
        (0, "median_step", 0.0080),
        (1, "high_pass_std", 0.228),
        (1, "minute_std", 0.044),
        (1, "median_step", 0.080),
    ],
)
def test_channels_are_as_specified(rows, channel, name, expected):
    assert statistics.channel_statistics(rows[..., channel])[name] == pytest.approx(expected, rel=0.03)


def test_autocorrelation_is_as_specified(error):
    specified = {1: 0.82, 2: 0.45, 3: 0.0, 11: 0.53, 21: 0.61}
    for lag, value in specified.items():
        assert error["autocorrelation"][lag - 1] == pytest.approx(value, rel=0.03, abs=0.015)
    assert error["autocorrelation_rmse"] == pytest.approx(0.05, abs=0.01)


def test_correlations_are_as_specified(error):
    for name, value in {"I:MDAT40": -0.22, "I:IB": -0.11, "B:LINFRQ": 0.0}.items():
        assert error["correlation"][name] == pytest.approx(value, abs=0.015)


def test_extremes(rows):
    # The largest of 250k ticks in a row was 1.07–1.15 in the specification's two runs.
    largest = np.abs(rows[..., 1]).max(axis=0)
    assert 0.8 < np.median(largest) < 1.3 and largest.max() < 1.6


@pytest.mark.parametrize("fit", range(3))
def test_near_the_recording(fit, rows):
    if fit > 0:
        rows = statistics.simulate(jax.random.key(fit), PLANTS[fit], **SIZE)[0]
    error, channel = statistics.error_statistics(rows), statistics.channel_statistics(rows[..., 1])
    assert error["mean_abs"] == pytest.approx(channels.MEAN_ABS_ERROR, rel=0.10)
    assert error["iqr"] == pytest.approx(channels.ERROR_IQR, rel=0.10)
    assert channel["high_pass_std"] == pytest.approx(channels.TARGETS["B:IMINER"].high_pass_std, rel=0.10)
    assert channel["median_step"] == pytest.approx(channels.TARGETS["B:IMINER"].median_step, rel=0.10)
    assert error["autocorrelation_rmse"] <= 0.08


def test_linac_and_current_near_the_recording(rows):
    for index, names in (
        (2, ("high_pass_std", "median_step")),
        (3, ("high_pass_std",)),
        (4, ("high_pass_std",)),
    ):
        ours, target = (
            statistics.channel_statistics(rows[..., index]),
            channels.TARGETS[channels.NAMES[index]],
        )
        for name in names:
            assert ours[name] == pytest.approx(getattr(target, name), rel=0.03)
    assert rows[..., 2].std() == pytest.approx(15.9, rel=0.15)  # 60 s correlation: few independent values


def test_error_lies_on_the_grid(rows):
    steps = rows[..., 1] / channels.ERROR_GRID
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-3)


def test_tables():
    assert len(generator.CURRENT) == generator.SUPERCYCLE == 40 * 21 + 61
    assert generator.CURRENT[853] == 7056 and generator.CURRENT[892] == 7056
    first = generator.CURRENT[:21]
    slope = np.roll(first, -1) - np.roll(first, 1)
    assert np.std(generator.RAMP[21:42]) == pytest.approx(1.0)
    np.testing.assert_allclose(generator.RAMP[21:42] * np.std(first * slope / 2), first * slope / 2)
    # MDAT40 leads by a tick and lags behind a ramp by 80
    assert generator.MDAT40[8] == generator.CURRENT[9] - 80 and generator.MDAT40[1] == generator.CURRENT[2]
    assert generator.MDAT40[17] == generator.CURRENT[18] + 80


def test_loop_against_plain_python():
    """The closed loop, written out a second time in float64 with the noise that the generator drew."""
    ticks, plant = 2000, PLANTS[0]
    machine = generator.initial_machine(jax.random.key(3), plant)
    drawn = []

    @jax.jit
    def advance(key, machine):
        return generator.advance(key, machine, plant)

    states = [machine]
    for t in range(ticks):
        machine, signals = advance(jax.random.fold_in(jax.random.key(4), t), machine)
        states.append(machine)
        drawn.append(signals)
    loop, beta, got = generator.initial_loop(), jnp.zeros(()), []
    respond = jax.jit(lambda loop, v, b, s: generator.respond(plant, loop, b + v, b, s))
    for t in range(ticks):
        v, beta = generator.regulate(generator.measured(loop.error), beta)
        loop = respond(loop, v, states[t].set_point, drawn[t])
        got.append(float(loop.error))

    phase, psi = int(states[0].phase), float(states[0].burst_phase)
    e, b, past, expected = 0.0, 0.0, [0.0, 0.0, 0.0], []
    current = generator.CURRENT
    cycle_slope = np.roll(current[:21], -1) - np.roll(current[:21], 1)
    unit = np.std(current[:21] * cycle_slope / 2)
    for t in range(ticks):
        seen = 0.005 * round(e / 0.005)
        b += 7.535e-5 * seen
        v = -0.10 * seen - b
        k = (phase + t + 1) % 901
        ramp = current[k] * (current[(k + 1) % 901] - current[k - 1]) / 2 / unit
        forcing = -(0.035 * ramp + 0.010 * (current[k] - 3300) / 2400)
        if 846 <= k < 900:
            forcing += 0.13 * np.sin(2 * np.pi * (t + 1) / 10.8 + psi)
        change = float(states[t + 1].set_point) - float(states[t].set_point)
        e = 0.86 * e + 10 * (0.33 * past[1] + 0.08 * past[2]) + forcing + float(states[t].drift)
        e += 0.066 * float(drawn[t].noise) - 10 * change
        past = [v, *past[:2]]
        expected.append(e)
    assert any(float(s.set_point_change) != 0 for s in drawn)
    # Rounding to the grid may fall the other way once in a while; it moves e by 10 g2 α 0.005.
    np.testing.assert_allclose(got, expected, atol=4e-3)
    assert np.median(np.abs(np.array(got) - expected)) < 1e-4


def test_set_point_walk():
    """Jump rate, and pull towards 103.415."""

    def run(start, key):
        machine = generator.initial_machine(key, PLANTS[0]).replace(set_point=jnp.asarray(start))

        def tick(machine, key):
            machine, signals = generator.advance(key, machine, PLANTS[0])
            return machine, signals.set_point_change

        return jax.lax.scan(tick, machine, jax.random.split(key, 20_000))[1]

    change = np.asarray(jax.jit(jax.vmap(run))(jnp.full(64, 0.2), jax.random.split(jax.random.key(0), 64)))
    jumps = change[change != 0]
    np.testing.assert_allclose(np.abs(jumps), 0.001, rtol=1e-5)
    assert len(jumps) / change.size == pytest.approx(6.5e-4, rel=0.1)
    assert (jumps > 0).mean() == pytest.approx(0.5 * (1 - 0.2 / 0.634), abs=0.06)


def test_damped_noise_is_stationary():
    for std, rate in (generator.LINAC_SLOW, generator.LINAC_FAST):
        transition, factor = generator._critically_damped(std, rate)
        covariance = std**2 * np.eye(2)
        after = transition @ covariance @ transition.T + factor @ factor.T
        np.testing.assert_allclose(after, covariance, atol=1e-12)
        # the autocorrelation of critically damped noise: (1 + ωτ) exp(−ωτ)
        h = rate / 15
        np.testing.assert_allclose(np.linalg.matrix_power(transition, 7)[0, 0], (1 + 7 * h) * np.exp(-7 * h))
