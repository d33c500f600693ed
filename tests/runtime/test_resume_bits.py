"""Exact resume, of agents with states of their own: noise in weights, temperatures, ensembles, moments."""

import signal

import pytest

from jaxrl_hpc import config as configs
from jaxrl_hpc.runtime import train
from tests import small

ON_POLICY = {"name": "pqn", "minibatches": 2, "network": {"hidden": [16], "layer_norm": True}}
CONTINUOUS = {"network": {"hidden": [16]}, "batch_size": 16}
CASES = {
    "rainbow": {
        "agent": {"returns": "c51", "atoms": 5, "noisy": True, "dueling": True, "epsilon_end": 0.0},
    },
    "sac": {
        "agent": {"name": "sac", **CONTINUOUS, "batch_norm": True, "policy_delay": 2, "noise_memory": 0.9},
        "env": {"name": "Pendulum-v1"},
    },
    "pqn": {"agent": ON_POLICY | {"normalise": {"observation": True}}, "workflow": {"unroll_length": 16}},
    "mbpo": {
        "agent": {"name": "mbpo", **CONTINUOUS, "model_hidden": [8], "model_tolerance": 100.0}
        | {"planning_updates": 2, "max_disagreement": 10.0},
        "env": {"name": "Pendulum-v1"},
    },
}


@pytest.mark.full
@pytest.mark.parametrize("name", list(CASES))
def test_it_resumes_with_the_same_bits(name, tmp_path, monkeypatch):
    """Whatever is drawn comes from the run's keys alone, whenever it was interrupted."""
    data = small.data(run={"total_env_steps": 2000, "eval_every": 0}, **CASES[name])
    if name == "pqn":
        del data["replay"]
    config = configs.from_dict(data)
    whole = train.train(config, tmp_path / "whole", say=lambda _: None)
    small.signal_at_chunk(monkeypatch, 4, signal.SIGTERM)
    assert not train.train(config, tmp_path / "run", say=lambda _: None).finished
    monkeypatch.undo()
    resumed = train.train(config, tmp_path / "run", resume=True, say=lambda _: None)
    assert resumed.summary["params_sha256"] == whole.summary["params_sha256"]
