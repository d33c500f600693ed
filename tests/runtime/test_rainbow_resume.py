"""Exact resume of a run whose exploration is noise in the weights."""

import signal

import pytest

from jaxrl_hpc.runtime import train
from tests import small


@pytest.mark.full
def test_rainbow_resumes_with_the_same_bits(tmp_path, monkeypatch):
    """Noise comes from the run's keys alone, whenever it was interrupted."""
    options = {"returns": "c51", "atoms": 5, "noisy": True, "dueling": True, "epsilon_end": 0.0}
    config = small.config(agent=options)
    whole = train.train(config, tmp_path / "whole", say=lambda _: None)
    small.signal_at_chunk(monkeypatch, 4, signal.SIGTERM)
    assert not train.train(config, tmp_path / "run", say=lambda _: None).finished
    monkeypatch.undo()
    resumed = train.train(config, tmp_path / "run", resume=True, say=lambda _: None)
    assert resumed.summary["params_sha256"] == whole.summary["params_sha256"]
