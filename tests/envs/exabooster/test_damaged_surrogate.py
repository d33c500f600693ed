"""Damaged files of a surrogate: one exception type, one sentence."""

import json

import jax
import numpy as np
import pytest

from jaxrl_hpc.cli.main import main
from jaxrl_hpc.envs.exabooster import fitting, surrogate
from jaxrl_hpc.errors import UserError


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "surrogate.bin"
    surrogate.save(path, surrogate.initial(jax.random.key(0), 4, 1), {"mse": 1.0})
    return path


@pytest.mark.parametrize("seed", range(20))
def test_any_damage_is_a_user_error_or_harmless(seed, saved):
    generator = np.random.default_rng(seed)
    content = bytearray(saved.read_bytes())
    kind = seed % 3
    if kind == 0:
        content = content[: generator.integers(len(content))]
    elif kind == 1:
        for place in generator.integers(len(content), size=20):
            content[place] = generator.integers(256)
    else:
        content = bytearray(generator.bytes(200))
    saved.write_bytes(content)
    try:
        surrogate.load(saved)
    except UserError as error:
        assert str(saved) in str(error)


@pytest.mark.parametrize(
    "change", [{"width": -4}, {"width": 1e12}, {"width": 5}, {"layers": "one"}, {"layers": 2}, {"report": 5}]
)
def test_a_header_that_does_not_fit(change, saved):
    header, weights = saved.read_bytes().split(b"\n", 1)
    saved.write_bytes(json.dumps(json.loads(header) | change).encode() + b"\n" + weights)
    with pytest.raises(UserError, match="damaged, or not a file of"):
        surrogate.load(saved)


def test_a_check_of_a_missing_file_makes_no_data(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fitting, "load_data", None)
    assert main(["surrogate", "check", str(tmp_path / "none")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_a_fit_of_one_update():
    rows = np.random.default_rng(0).normal(size=(40, 4, 5)).astype(np.float32)
    data = fitting.Data(rows, rows, fitting.EXARL_SCALING)
    _, report = fitting.train(jax.random.key(0), data, fitting.Settings(width=4, updates=1, batch=2))
    assert report["history"][-1]["updates"] == 1


def test_sizes_of_a_fit_are_bounded(capsys):
    for option in ("--width", "--layers", "--batch", "--rows", "--updates", "--seed"):
        assert main(["surrogate", "fit", option, str(10**12)]) == 2
        assert f"error: {option}: should be from" in capsys.readouterr().err
