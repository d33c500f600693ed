"""Ranks that die, stop or are told to go: the job ends and says who, and goes on from its checkpoint."""

import json
import os
import signal
import sys
import time
from collections import Counter

import pytest
import yaml

from jaxrl_hpc import config as configs
from jaxrl_hpc.checkpoint.checkpointer import Checkpointer
from jaxrl_hpc.metrics.parquet import read_metrics
from tests.mpi import actor_learner_jobs, gossip_jobs, launch, parameter_server_jobs

pytestmark = [pytest.mark.mpi, pytest.mark.slow, launch.needs_mpi, pytest.mark.timeout(3600)]
RESTART = str(launch.ROOT / "scripts" / "mpi_restart.py")
FAULTS = ("workflow.deadline_seconds=6.0", "run.total_env_steps=400_000", "run.checkpoint_seconds=0.3")


def in_the_middle(folder, rank, process, besides):
    """What a rank of a new job writes about itself, once there is a checkpoint newer than `besides`."""
    deadline = time.monotonic() + 400
    shared = Checkpointer(folder / "checkpoints" / "shared")
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[0]
        step = shared.latest() or 0
        try:
            record = json.loads((folder / "ranks" / f"{rank}.json").read_text())
        except (OSError, ValueError):
            record = {}
        if step > besides and record.get("chunk", 0) > 3 and "start" not in record["phase"]:
            return record, step
        time.sleep(0.02)  # between looks
    os.killpg(process.pid, signal.SIGKILL)
    pytest.fail(f"the run did not get going; output:\n{process.communicate()[0][-3000:]}")


def ordeal(tmp_path, data, killed, stopped, told):
    """A job of three ranks: one is killed, after the restart one stops, after the next one gets a signal."""
    for text in FAULTS:
        configs.apply_override(data, text)
    config = tmp_path / "small.yaml"
    config.write_text(yaml.safe_dump(data))
    folder = tmp_path / "run"
    train = ["-m", "jaxrl_hpc.cli.main", "train", str(config), "--run-dir", str(folder)]
    process = launch.start(1, RESTART, "-n", "3", sys.executable, *train)

    step, pids = 0, {}
    for rank, what in ((killed, signal.SIGKILL), (stopped, signal.SIGSTOP), (told, signal.SIGUSR1)):
        record, step = in_the_middle(folder, rank, process, step)
        pids[what] = record["pid"]
        os.kill(record["pid"], what)
    status, output = launch.finish(process, 300)

    assert status == 75, output
    assert f"rank {killed} (process {pids[signal.SIGKILL]} on" in output and "died while" in output, output
    silent = f"rank {stopped} (process {pids[signal.SIGSTOP]} on"
    assert silent in output and "has not been heard from for" in output, output
    assert output.count("resumed at") == 2, output
    assert f"SIGUSR1 on rank {told}: saved at" in output, output
    return folder


def test_an_actor_killed_stopped_and_told_to_go(tmp_path):
    data = json.loads(json.dumps(actor_learner_jobs.DQN))
    data["run"]["record_schedule"] = True
    folder = ordeal(tmp_path, data, killed=2, stopped=1, told=2)
    entries = actor_learner_jobs.schedule(folder)
    kept = actor_learner_jobs.kept(folder)
    assert kept["taken"] == len(entries) and kept["lost"] == 0
    assert len({tuple(entry[:2]) for entry in entries}) == len(entries), "nothing was learned from twice"
    for actor, number in Counter(actor for actor, *_ in entries).items():
        assert sorted(s for a, s, *_ in entries if a == actor) == list(range(number)), "nor left out"


SERVED = ["workflow.rule=server", "workflow.servers=1"]
OUTSIDE = ["workflow.name=central_inference", "env.name=gymnasium"]
DYNA = ["workflow.name=dyna", "agent.name=dyna_q", "workflow.learners=2"]


@pytest.mark.parametrize(
    "build, case, changes, killed, stopped, told",
    [
        pytest.param(
            actor_learner_jobs, "a2c", ["workflow.name=central_inference"], 1, 0, 2, id="central inference"
        ),
        pytest.param(
            actor_learner_jobs, "a2c", OUTSIDE, 1, 0, 2, id="central inference of outside simulators"
        ),
        pytest.param(actor_learner_jobs, "dqn", DYNA, 2, 0, 1, id="dyna"),
        pytest.param(parameter_server_jobs, "a2c", ["workflow.rule=lock"], 0, 2, 1, id="workers and a lock"),
        pytest.param(parameter_server_jobs, "a2c", SERVED, 2, 1, 0, id="workers and a server"),
        pytest.param(gossip_jobs, "a2c", [], 0, 2, 1, id="gossip"),
    ],
)
def test_any_rank_of_the_others_too(tmp_path, build, case, changes, killed, stopped, told):
    data = build.config_of(case, changes).to_dict()
    folder = ordeal(tmp_path, data, killed, stopped, told)
    steps = [row["env_steps"] for row in read_metrics(folder).to_pylist() if row["kind"] == "train"]
    assert steps == sorted(set(steps)), "what a broken job wrote after its last checkpoint is gone"
