"""The examples that CONTRIBUTING shows are complete: each runs by its config alone, and learns."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxrl_hpc import config as configs
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runs.directory import RunDirectory
from jaxrl_hpc.runtime.build import build
from jaxrl_hpc.runtime.evaluation import evaluate_run
from jaxrl_hpc.runtime.train import train
from tests.mpi import launch
from tests.tiers import quick

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "docs" / "examples"


LEARN = [
    ("agent", "agent", 100.0),
    ("corridor", "env", 0.9),
    ("replay", "replay", 0.9),
    ("workflow", "workflow", 100.0),
    ("distributed_workflow", "workflow", 60.0),
]


@pytest.fixture
def _in_examples(monkeypatch):
    """Where users start: configs find modules in the working directory."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.usefixtures("_in_examples")
@pytest.mark.parametrize(("name", "section", "at_least"), quick(LEARN, [LEARN[0]]))
def test_an_example_learns_and_is_found_again(name, section, at_least, tmp_path):
    """A random policy gets about 22 on CartPole and 0 in the corridor."""
    config = configs.load(f"{name}.yaml", ["run.tensorboard=false"])
    summary = train(config, tmp_path / "run", say=lambda _: None).summary
    assert summary["eval_return_score"] > at_least
    assert re.fullmatch(r"\w+:\w+", RunDirectory(tmp_path / "run").read_config()[section]["name"])
    assert evaluate_run(tmp_path / "run", episodes=16)["eval_return_score"] > at_least


@pytest.mark.full
@pytest.mark.usefixtures("_in_examples")
def test_a_gymnasium_environment_by_its_dotted_path_learns(tmp_path):
    """A heater at half power is 5 degrees off on average, over 96 steps about -480."""
    config = configs.load("thermostat.yaml", ["run.total_env_steps=30_720"])
    summary = train(config, tmp_path / "run", say=lambda _: None).summary
    assert summary["env"] == "thermostat:Thermostat" and summary["eval_return_score"] > -200


@pytest.mark.usefixtures("_in_examples")
def test_the_replay_samples_the_newest_windows_and_whole_ones():
    """Steps are numbered, and three unrolls overwrite the oldest rows."""
    import jax
    import jax.numpy as jnp

    config = configs.load("replay.yaml", ["replay.capacity=16", "replay.min_size=4", "workflow.num_envs=2"])
    parts = build(config)
    example = jax.tree.map(jnp.zeros_like, _numbered(0, 0))
    state = parts.replay.init(example, {})
    for time in range(20):
        step = jax.tree.map(lambda *x: jnp.stack(x)[None], *(_numbered(time, copy) for copy in range(2)))
        state = parts.replay.add(state, step, None)
    batch = parts.replay.sample(state, jax.random.key(0), jnp.float32(0))
    first, second = np.asarray(batch.data.reward)
    assert batch.data.reward.shape == (2, 64)
    assert (second == first + 10).all()  # consecutive steps of one copy
    assert list(first[:2]) == [180, 181]
    assert set(first[2:]) == {10 * time + copy for time in range(12, 19) for copy in range(2)}


def _numbered(time, copy):
    from jaxrl_hpc.types import Transition

    zero = np.float32(0)
    return Transition(
        np.zeros(2, np.float32), np.int32(0), np.float32(10 * time + copy), zero, False, zero, ()
    )


@pytest.mark.usefixtures("_in_examples")
@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("replay", ["agent.batch_size=8"], "agent.batch_size is 8"),
        ("workflow", ["agent.name=agent:make"], "agents with a replay"),
        ("distributed_workflow", ["agent.name=dqn"], "agents that learn from unrolls"),
    ],
)
def test_examples_say_what_does_not_fit(name, changes, words):
    data = configs.load(f"{name}.yaml").to_dict()
    for text in changes:
        configs.apply_override(data, text)
        if text.startswith("agent.name"):
            data["agent"] = {"name": data["agent"]["name"]}
    if data["agent"]["name"] == "agent:make":
        del data["replay"]
    with pytest.raises(UserError, match=words):
        build(configs.from_dict(data))


# Trains on all ranks, one run after the other: RUN_DIR ROUNDS …; rank 1 is killed after so many rounds of one
# (0: never). A run that is there already is resumed.
JOB = """
import os, signal, sys
from pathlib import Path
import distributed_workflow
from jaxrl_hpc import config as configs
from jaxrl_hpc.comm.ranks import world
from jaxrl_hpc.runtime.train import train

average = distributed_workflow.LocalUpdates.average
for folder, rounds in zip(sys.argv[1::2], map(int, sys.argv[2::2])):
    done = []
    def killed(self, shared, statistics):
        done.append(1)
        if len(done) == rounds and world().rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return average(self, shared, statistics)
    distributed_workflow.LocalUpdates.average = killed
    changes = ["run.total_env_steps=16_384", "run.log_every=1", "run.checkpoint_seconds=0",
               "run.final_eval_episodes=8", "run.tensorboard=false", "agent.normalise.observation=true"]
    resume = (Path(folder) / "config.yaml").exists()
    config = configs.load(os.environ["EXAMPLES"] + "/distributed_workflow.yaml", changes)
    train(config, folder, resume=resume)
"""


def job(ranks: int, *words: object) -> tuple[int, str]:
    folders = {"PYTHONPATH": f"{ROOT}:{EXAMPLES}", "EXAMPLES": str(EXAMPLES)}
    return launch.run(ranks, "-c", JOB, *map(str, words), **folders)


def summary_of(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.full
@pytest.mark.mpi
@launch.needs_mpi
@pytest.mark.timeout(3600)
def test_a_killed_distributed_example_goes_on_with_equal_bits(tmp_path, monkeypatch):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    status, output = job(2, whole, 0, killed, 5)
    assert status != 0 and summary_of(whole)["env_steps"] == 16_384, output
    assert not (killed / "summary.json").exists()
    monkeypatch.syspath_prepend(EXAMPLES)
    with pytest.raises(UserError, match="has the states of 2 rank"):
        train(configs.from_dict(RunDirectory(killed).read_config()), killed, resume=True, say=lambda _: None)
    status, output = job(2, killed, 0)
    assert status == 0 and "resumed at" in output, output
    assert summary_of(killed)["params_sha256"] == summary_of(whole)["params_sha256"]
    assert evaluate_run(killed, episodes=4)["env_steps"] == 16_384


@pytest.mark.full
@pytest.mark.mpi
@launch.needs_mpi
@pytest.mark.timeout(3600)
def test_the_distributed_example_on_three_ranks(tmp_path):
    status, output = job(3, tmp_path / "run", 0)
    assert status == 0, output
    summary = summary_of(tmp_path / "run")
    assert summary["env_steps"] == 6 * 3 * 16 * 16 * 4 and summary["updates"] == 6 * 4


def test_contributing_names_every_example_and_no_other_file():
    targets = re.findall(r"\]\(([^)]+)\)", (ROOT / "CONTRIBUTING.md").read_text())
    assert not [target for target in targets if not (ROOT / target).exists()]
    assert {p.name for p in EXAMPLES.rglob("*.py")} == {
        Path(target).name for target in targets if "examples" in target
    }
