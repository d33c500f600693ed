"""Ranks that die, stop or are told to go: the job ends at once and says who, and a restart is exact."""

import json
import os
import signal
import sys
import time

import pytest
import yaml

from jaxrl_hpc.io.checkpoint import Checkpointer
from jaxrl_hpc.io.metrics import read_metrics, without_clock
from tests.mpi import cases, launch

pytestmark = [pytest.mark.mpi, launch.needs_mpi]
RESTART = str(launch.ROOT / "scripts" / "mpi_restart.py")
SETTINGS = {
    "total_env_steps": 96_000,
    "log_every": 1200,
    "eval_every": 24_000,
    "eval_episodes": 4,
    "final_eval_episodes": 4,
    "checkpoint_seconds": 0.3,
    "tensorboard": False,
}


@pytest.fixture(scope="module")
def config_file(tmp_path_factory):
    data = json.loads(json.dumps(cases.DQN))
    data["workflow"] |= {"deterministic": True, "deadline_seconds": 3.0}
    data["run"] |= SETTINGS
    path = tmp_path_factory.mktemp("config") / "small.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def train(config, folder, *more):
    return ["-m", "jaxrl_hpc.cli.main", "train", str(config), "--run-dir", str(folder), *more]


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


@pytest.fixture(scope="module")
def whole(config_file, tmp_path_factory):
    """The run that nothing happened to."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    status, output = launch.run(2, *train(config_file, folder))
    assert status == 0, output
    return folder


def rank_in_the_middle(folder, rank, process):
    """What a rank writes about itself, once it trains and a checkpoint is there."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[0]
        try:
            record = json.loads((folder / "ranks" / f"{rank}.json").read_text())
        except (OSError, ValueError):
            record = {}
        if record.get("chunk", 0) >= 4 and Checkpointer(folder / "checkpoints" / "shared").latest():
            return record
        time.sleep(0.02)  # between looks
    process.kill()
    pytest.fail("the run did not get going")


def test_a_killed_rank_is_named_and_the_restarted_run_has_the_same_bits(whole, config_file, tmp_path):
    folder = tmp_path / "killed"
    process = launch.start(1, RESTART, "-n", "2", sys.executable, *train(config_file, folder))
    record = rank_in_the_middle(folder, 1, process)
    os.kill(record["pid"], signal.SIGKILL)
    status, output = launch.finish(process, 240)
    assert status == 0, output
    assert f"rank 1 (process {record['pid']} on" in output and "died while" in output, output
    assert "starting again from the newest checkpoint" in output and "resumed at" in output, output
    assert summary(folder)["params_sha256"] == summary(whole)["params_sha256"]
    rows = [str(without_clock(read_metrics(f)).to_pylist()) for f in (whole, folder)]
    assert rows[0] == rows[1]


def test_a_stopped_rank_is_noticed(config_file, tmp_path):
    folder = tmp_path / "stopped"
    process = launch.start(2, *train(config_file, folder))
    record = rank_in_the_middle(folder, 1, process)
    os.kill(record["pid"], signal.SIGSTOP)
    try:
        status, output = launch.finish(process, 60)
    finally:
        if os.path.exists(f"/proc/{record['pid']}"):
            os.kill(record["pid"], signal.SIGKILL)
    assert status not in (0, 75), output
    assert "watchdog of rank 0" in output, output
    assert f"rank 1 (process {record['pid']} on" in output and "has not been heard of for" in output, output


def test_a_signal_on_one_rank_saves_all_and_another_size_finishes_the_run(whole, config_file, tmp_path):
    folder = tmp_path / "preempted"
    process = launch.start(2, *train(config_file, folder))
    record = rank_in_the_middle(folder, 1, process)
    os.kill(record["pid"], signal.SIGUSR1)
    status, output = launch.finish(process, 120)
    assert status == 75, output
    assert "SIGUSR1 on rank 1: saved at" in output and "--resume" in output, output
    steps = {Checkpointer(path).latest() for path in (folder / "checkpoints").iterdir()}
    assert len(steps) == 1, "all shards and what is shared are of the same step"
    status, output = launch.run(1, *train(config_file, folder, "--resume"))
    assert status == 0, output
    assert summary(folder)["params_sha256"] == summary(whole)["params_sha256"]


FAIL = """
from jaxrl_hpc.comm.ranks import world
from jaxrl_hpc.errors import UserError
ranks = world()
with ranks.guard():
    if ranks.rank == 1:
        raise {error}
    ranks.barrier()
"""


@pytest.mark.parametrize(
    "error, text, code",
    [
        ("ValueError('this is broken')", "rank 1 of 2 failed and ends the job", 1),
        ("UserError('too little memory here')", "error: rank 1 of 2: too little memory here", 2),
    ],
)
def test_an_error_on_one_rank_ends_the_job(error, text, code):
    status, output = launch.run(2, "-c", FAIL.format(error=error), seconds=60)
    assert status == code and text in output, output


def test_an_error_on_all_ranks_is_said_once(config_file, tmp_path):
    status, output = launch.run(5, *train(config_file, tmp_path / "five"), seconds=120)
    assert status == 2, output
    assert output.count("workflow.shards is 12: it must be a multiple of ranks × devices = 5 × 1") == 1
