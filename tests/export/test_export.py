"""An exported policy acts as the run it came from, where this package cannot be imported."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc import config as configs
from jaxrl_hpc.cli.main import main
from jaxrl_hpc.export import _earlier_programs, export_run, loader
from jaxrl_hpc.export.check import random_observations
from jaxrl_hpc.runtime.evaluation import load_run
from jaxrl_hpc.runtime.train import train
from tests import small
from tests.tiers import quick

ROOT = Path(__file__).resolve().parents[2]
STEPS, BATCH = 6, 16
QUICK = {"total_env_steps": 1024, "log_every": 512, "eval_every": 0, "final_eval_episodes": 4}
PPO = {"name": "ppo", "network": {"hidden": [16]}}
WHITEN = {"observation": True, "reward": True}

AGENTS: dict[str, dict[str, Any]] = {
    "dqn": {"agent": {"exploration": "ladder", "returns": "quantile", "atoms": 5, "noisy": True}},
    "ppo": {"env": {"name": "Pendulum-v1"}, "agent": PPO | {"normalise": WHITEN}},
    "lstm_a2c": {"agent": {"name": "a2c", "lstm": 8, "network": {"hidden": [16]}}},
    "recurrent_dqn": {
        "agent": {"name": "recurrent_dqn", "lstm": 8, "network": {"hidden": [16]}, "batch_size": 4}
        | {"learning_rate": 1e-6},  # after so short a training one action would always be best
        "replay": {"name": "sequence", "capacity": 2048, "min_size": 64},
    },
    "sac": {
        "env": {"name": "Pendulum-v1"},
        "agent": {"name": "sac", "network": {"hidden": [16]}, "batch_size": 16, "batch_norm": True},
        "replay": {"name": "uniform", "capacity": 2048, "min_size": 64},
    },
    "td3": {
        "env": {"name": "Pendulum-v1"},
        "agent": {"name": "td3", "network": {"hidden": [16]}, "batch_size": 16, "noise": "ou"},
        "replay": {"name": "uniform", "capacity": 2048, "min_size": 64},
    },
    "pqn": {"agent": {"name": "pqn", "network": {"hidden": [16], "layer_norm": True}}},
    "iql": {
        "env": {"name": "Pendulum-v1"},
        "agent": {"name": "iql", "network": {"hidden": [16]}, "batch_size": 16},
        "replay": {"name": "uniform", "capacity": 2048, "min_size": 64},
    },
    "mbpo": {
        "env": {"name": "Pendulum-v1"},
        "agent": {"name": "mbpo", "network": {"hidden": [16]}, "batch_size": 16, "model_hidden": [8]},
        "replay": {"name": "uniform", "capacity": 2048, "min_size": 64},
    },
}
DRAWING = ("ppo", "lstm_a2c", "sac", "iql", "mbpo")  # policies that are distributions

# acts on stored observations with nothing but the exported folder
ALONE = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("jaxrl_hpc", "flax", "optax", "gymnax"):
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
folder, source, target = sys.argv[1:]
sys.path.insert(0, folder)
import numpy as np
from policy import load
policy, carry, actions = load(folder), None, []
for obs in np.load(source):
    action, carry = policy.act(obs, carry)
    actions.append(action)
assert "jaxrl_hpc" not in sys.modules
np.savez(target, actions=np.stack(actions), **carry)
"""


@pytest.fixture(scope="module", params=quick(AGENTS, ["dqn"]))
def exported(request, tmp_path_factory) -> tuple[str, Path, Path]:
    data = small.data(run={**QUICK, "seeds": 2 if request.param == "dqn" else 1}, **AGENTS[request.param])
    if data["agent"]["name"] in ("ppo", "a2c", "pqn"):
        del data["replay"]
        data["workflow"] |= {"unroll_length": 16}
    folder = tmp_path_factory.mktemp("runs") / request.param
    train(configs.from_dict(data), folder, say=lambda _: None)
    export_run(folder, folder / "policy")
    return request.param, folder, folder / "policy"


def original(run: Path, observations: np.ndarray, lane: int = 0) -> tuple[np.ndarray, Any]:
    _, runner = load_run(run)
    agent, params = runner.parts.agent, runner.actor(lane)
    batch = observations.shape[1]
    carry = agent.carry(jnp.arange(batch, dtype=jnp.int32))
    keys = jax.vmap(jax.random.key)(jnp.arange(batch))
    actions = []
    for obs in observations:
        action, carry, _ = agent.act(params, carry, obs, keys, True)
        actions.append(np.asarray(action))
    return np.stack(actions), carry


def observations_for(run: Path) -> np.ndarray:
    spec = load_run(run)[1].parts.env.spec
    generator = np.random.default_rng(1)
    return np.stack([random_observations(spec, generator, BATCH) for _ in range(STEPS)])


def test_it_acts_as_the_run_without_the_package(exported, tmp_path) -> None:
    name, run, folder = exported
    observations = observations_for(run)
    np.save(tmp_path / "observations.npy", observations)
    command = [sys.executable, "-c", ALONE, folder, tmp_path / "observations.npy", tmp_path / "actions.npz"]
    subprocess.run([str(part) for part in command], check=True, cwd=tmp_path)
    expected, carry = original(run, observations)
    assert len(np.unique(expected)) > 1, "a constant policy would prove nothing"
    with np.load(tmp_path / "actions.npz") as found:
        np.testing.assert_allclose(found["actions"], expected, rtol=1e-5, atol=1e-5)
        memory = [found[key] for key in found.files if key != "actions"]
    assert bool(memory) == (name in ("lstm_a2c", "recurrent_dqn"))  # noise and rewards are left behind
    ours = carry["memory"] if name == "recurrent_dqn" else carry
    for one, other in zip(memory, jax.tree.leaves(ours), strict=False):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_only_what_acting_needs_is_in_it(exported) -> None:
    name, _, folder = exported
    metadata = json.loads((folder / "metadata.json").read_text())
    assert set(metadata["programs"]) == {"greedy", *(["sample"] if name in DRAWING else [])}
    for program in metadata["programs"].values():
        left_behind = ("critic", "epsilon", "model", "target")
        assert not [key for key in program["weights"] if any(part in key for part in left_behind)]
    if name == "ppo":
        assert {"by/shift", "by/scale"} <= set(metadata["programs"]["greedy"]["weights"])


def test_single_observations_batches_and_samples(exported) -> None:
    name, run, folder = exported
    obs = observations_for(run)[0]
    policy = loader.load(folder)
    batch, _ = policy.act(obs)
    for i in (0, 5):
        one, _ = policy.act(obs[i], policy.initial_carry())
        np.testing.assert_allclose(one, batch[i], rtol=1e-5, atol=1e-5)
        assert one.shape == tuple(policy.metadata["action"]["shape"])
    with pytest.raises(ValueError, match="an observation has shape"):
        policy.act(np.zeros((2, 3, 77)))
    if name in DRAWING:
        many = np.repeat(obs[:1], 512, axis=0)
        first, second = loader.load(folder, sample=True), loader.load(folder, sample=True)
        drawn, _ = first.act(many)
        assert drawn.std() > 0
        np.testing.assert_array_equal(drawn, second.act(many)[0])  # the same seed, the same draws
        assert (first.act(many)[0] != drawn).any()
    else:
        with pytest.raises(ValueError, match="one action per observation"):
            loader.load(folder, sample=True)


def test_other_folders_are_refused_in_one_sentence(exported, tmp_path, capsys) -> None:
    name, run, folder = exported
    if name != "dqn":
        pytest.skip("the same for all agents")
    with pytest.raises(ValueError, match=r"no metadata\.json"):
        loader.load(run)
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy" / "weights.npz").unlink()
    with pytest.raises(ValueError, match=r"incomplete: weights\.npz"):
        loader.load(tmp_path / "copy")
    (tmp_path / "copy" / "metadata.json").write_text('{"format": "other"}')
    with pytest.raises(ValueError, match="something else"):
        loader.load(tmp_path / "copy")
    for arguments, message in [
        ([str(tmp_path / "nowhere")], "there is no run directory"),
        ([str(run), "--seed", "7"], "has no seed 7; it has 0, 1"),
        ([str(run), "--out", str(tmp_path / "copy")], "not empty and not an exported policy"),
        ([str(run), "--out", str(run / "config.yaml")], "is a file"),
    ]:
        assert main(["export", *arguments]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


def test_exporting_again_deletes_only_what_the_export_wrote(tmp_path) -> None:
    (tmp_path / "theirs.stablehlo").write_text("mine")
    assert _earlier_programs(tmp_path) == []
    programs = {"greedy": {"file": "greedy.stablehlo"}, "odd": {"file": "../run/config.yaml"}}
    metadata = {"format": loader.FORMAT, "version": loader.VERSION, "programs": programs}
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    assert _earlier_programs(tmp_path) == ["greedy.stablehlo"]


def test_the_command_and_the_example(exported, tmp_path, capsys) -> None:
    name, run, folder = exported
    if name != "dqn":
        pytest.skip("the same for all agents")
    assert main(["export", str(run), "--out", str(tmp_path / "p"), "--seed", "1"]) == 0
    assert main(["export", str(run), "--out", str(tmp_path / "p"), "--seed", "1"]) == 0  # replaces its own
    assert "seed 1, after 1,024 steps" in capsys.readouterr().out
    observations = observations_for(run)
    found = loader.load(tmp_path / "p").act(observations[0])[0]
    np.testing.assert_array_equal(found, original(run, observations[:1], lane=1)[0][0])
    script = ROOT / "scripts" / "examples" / "drive_gymnasium.py"
    command = [sys.executable, str(script), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("CartPole-v1: return ")
