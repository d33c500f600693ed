"""The learned plant: network, training, gates, files, and the environment on it."""

import argparse
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.cli import surrogate as command
from jaxrl_hpc.envs.exabooster import ExaBoosterConfig, fitting, gates, make, recording, statistics, surrogate
from jaxrl_hpc.envs.exabooster.channels import SCALE
from jaxrl_hpc.envs.exabooster.generator import PLANTS
from jaxrl_hpc.errors import UserError


@pytest.fixture(scope="module")
def data():
    return fitting.generated_data(jax.random.key(0), 60_000, length=500)


@pytest.fixture(scope="module")
def network():
    variables = surrogate.initial(jax.random.key(1), 8, 2).variables
    return surrogate.Surrogate(variables, jnp.asarray(0.066), width=8, layers=2)


def _arguments(*words):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.full
def test_data_are_shifted_and_dithered(data):
    """VIMIN of row t answers the error of row t: −α e − β, with noise in every other trajectory."""
    rows = np.concatenate([data.train, data.validation], axis=1).astype(np.float64)
    vimin, error = rows[..., 0] * SCALE[0], rows[..., 1] * SCALE[1]
    rest = vimin + 0.10 * error
    wander = np.diff(rest, axis=0).std(axis=0)
    assert np.median(wander[1::2]) < 2e-4
    np.testing.assert_allclose(wander[::2], np.sqrt(2) * fitting.DITHER, rtol=0.2)
    assert data.train.shape[1] == round(0.7 * rows.shape[1])


def test_training_learns(data):
    settings = fitting.Settings(width=16, updates=300, batch=16, crop=64, burn_in=32, learning_rate=1e-2)
    network, report = fitting.train(jax.random.key(1), data, settings)
    # naming the last tick's values is the least a model can do
    rows = data.validation.astype(np.float64)
    naive = (np.diff(rows[..., :3], axis=0)[150:] ** 2).mean(axis=(0, 1))
    naive = (naive * (SCALE[:3] / data.scaling.span()[:3]) ** 2).mean()
    assert report["mse"] < 0.6 * naive
    assert float(network.noise) == pytest.approx(report["error_std"])
    assert report["history"][-1]["updates"] == 300


def test_one_step_error_of_a_known_predictor(data):
    """A network whose linear layer only copies the row has the error of the naive prediction."""
    network = surrogate.initial(jax.random.key(0), 4, 1)
    dense = network.variables["params"]["Dense_0"]
    kernel = jnp.zeros_like(dense["kernel"]).at[4:7].set(jnp.eye(3))
    variables = {"params": {**network.variables["params"], "Dense_0": {**dense, "kernel": kernel}}}
    copying = surrogate.Surrogate(variables, jnp.zeros(()), 4, 1)
    change = np.diff(data.validation.astype(np.float64)[..., :3], axis=0)[150:]
    expected = ((change * SCALE[:3] / data.scaling.span()[:3]) ** 2).mean()
    assert fitting.one_step_error(copying, data)["mse"] == pytest.approx(expected, rel=1e-4)


def test_save_and_load(network, tmp_path):
    surrogate.save(tmp_path / "s.bin", network, {"mse": 1.0})
    loaded, report = surrogate.load(tmp_path / "s.bin")
    assert report == {"mse": 1.0} and (loaded.width, loaded.layers) == (8, 2)
    jax.tree.map(np.testing.assert_array_equal, loaded, network)


def test_file_errors(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        surrogate.load(tmp_path / "none.bin")
    (tmp_path / "bad.bin").write_bytes(b"hello\nworld")
    with pytest.raises(UserError, match="not a file of"):
        surrogate.load(tmp_path / "bad.bin")


def test_environment_runs_on_it(network, tmp_path):
    """Its memory follows the same rows that the network is fed in one go."""
    surrogate.save(tmp_path / "s.bin", network, {})
    config = ExaBoosterConfig(model="surrogate", surrogate=str(tmp_path / "s.bin"), bank_size=8, stack=30)
    env, params = make(config)
    _, state = env.reset_env(jax.random.key(0), params)
    memory, rows = state.agent.memory, [np.asarray(state.window)[-5:]]
    step = jax.jit(env.step_env)
    for t in range(6):
        obs, state, reward, *_ = step(jax.random.fold_in(jax.random.key(1), t), state, 20, params)
        rows.append(np.asarray(obs)[-5:])
    # row t with the VIMIN that row t + 1 logs
    shifted = np.stack([np.concatenate([after[:1], before[1:]]) for before, after in pairwise(rows)])
    expected, _ = network.follow(memory, jnp.asarray(shifted))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), state.agent.memory, expected)
    assert np.isfinite(float(reward)) and float(state.shadow.error) != float(state.agent.error)


def test_step_response_of_the_linear_layer(data):
    """A network that only reads VIMIN answers at once: the gate has to see it on the first tick."""
    network = surrogate.initial(jax.random.key(0), 4, 1)
    dense = network.variables["params"]["Dense_0"]
    kernel = jnp.zeros_like(dense["kernel"]).at[4, 1].set(0.5)
    variables = {"params": {**network.variables["params"], "Dense_0": {**dense, "kernel": kernel}}}
    response = gates.step_response(surrogate.Surrogate(variables, jnp.zeros(()), 4, 1), data)
    np.testing.assert_allclose(response, 0.5 * 0.01 / SCALE[0] * SCALE[1], rtol=1e-4)


@pytest.mark.full
def test_untrained_network_fails_its_gates(data):
    network = surrogate.initial(jax.random.key(1), 4, 1)
    reference = data.train[..., 1].astype(np.float64) * SCALE[1]
    results = gates.check(jax.random.key(3), network, data, reference)
    assert len(results) == 7 and not results[0].passed and not results[-1].passed
    assert gates.table(results).count("| no |") == sum(not gate.passed for gate in results)


@pytest.mark.slow
def test_generator_passes_the_free_run_comparison():
    """Two runs of the generator are closer than the gates: the reference run is long enough."""
    one, other = (
        gates.describe(statistics.simulate(jax.random.key(seed), PLANTS[0], 16, 9010)[0][..., 1])
        for seed in (5, 6)
    )
    for name in ("std", "iqr", "median_step"):
        assert one[name] / other[name] == pytest.approx(1, abs=0.03)
    assert np.sqrt(np.mean((one["autocorrelation"] - other["autocorrelation"]) ** 2)) < 0.02


@pytest.mark.full
def test_command_fits_a_recording_and_checks(tmp_path, capsys):
    rows, set_point = statistics.simulate(jax.random.key(0), PLANTS[0], 1, 3000)
    recording.write(tmp_path / "log.csv", rows[:, 0], set_point[:, 0])
    csv, out = str(tmp_path / "log.csv"), str(tmp_path / "s.bin")
    small = ["--updates", "2", "--width", "4", "--batch", "2", "--rows", "3000"]
    assert command.run(_arguments("fit", "--csv", csv, "--out", out, *small)) == 1
    assert "not all gates passed" in capsys.readouterr().out
    assert surrogate.load(out)[1]["data"] == csv
    assert command.run(_arguments("check", out, "--csv", csv, "--rows", "3000")) == 1
    assert "| gate | value |" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words,message",
    [
        (["--rows", "10"], "--rows"),
        (["--width", "0"], "--width"),
        (["--out", "nowhere/s.bin"], "no folder nowhere"),
    ],
)
def test_command_errors(words, message):
    with pytest.raises(UserError, match=message):
        command.run(_arguments("fit", "--rows", "2000", *words))


@pytest.mark.slow
def test_default_fit_passes_its_gates(tmp_path):
    assert command.run(_arguments("fit", "--out", str(tmp_path / "s.bin"))) == 0
