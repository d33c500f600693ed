"""Ranks that die, stop or are told to go: the job ends at once and says who, and a restart is exact."""

import json
import os
import signal
import sys
import time

import pytest
import yaml

from jaxrl_hpc.checkpoint.checkpointer import Checkpointer
from jaxrl_hpc.metrics.parquet import read_metrics, without_clock
from tests.holding import Hold
from tests.mpi import cases, launch

pytestmark = [pytest.mark.mpi, launch.needs_mpi, pytest.mark.timeout(3600)]
RESTART = str(launch.ROOT / "scripts" / "mpi_restart.py")
SETTINGS = {
    "total_env_steps": 48_000,
    "log_every": 1200,
    "eval_every": 24_000,
    "eval_episodes": 4,
    "final_eval_episodes": 4,
    "checkpoint_seconds": 0.001,
    "tensorboard": False,
}


@pytest.fixture(scope="module")
def config_file(tmp_path_factory):
    data = json.loads(json.dumps(cases.DQN))
    data["workflow"] |= {"deterministic": True, "deadline_seconds": 40.0}
    data["run"] |= SETTINGS
    path = tmp_path_factory.mktemp("config") / "small.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def train(config, folder, *more):
    return ["-m", "jaxrl_hpc.cli.main", "train", str(config), "--run-dir", str(folder), *more]


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def rank_in_the_middle(folder, rank, process, chunk, besides=None):
    """What a rank of a new job writes about itself, once it trains and a checkpoint is there."""
    deadline = time.monotonic() + launch.PATIENCE
    shared = Checkpointer(folder / "checkpoints" / "shared")
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[0]
        try:
            records = [json.loads((folder / "ranks" / f"{r}.json").read_text()) for r in (0, 1)]
        except (OSError, ValueError):
            records = []
        new = records and all(record["pid"] != besides for record in records)
        if new and records[rank]["chunk"] >= chunk and shared.latest():
            return records[rank]
        time.sleep(0.02)  # between looks
    os.killpg(process.pid, signal.SIGKILL)
    pytest.fail(f"the run did not get going; output:\n{process.communicate()[0][-3000:]}")


@pytest.mark.full
def test_killed_stopped_told_to_go_and_resumed_elsewhere(config_file, tmp_path):
    """One run that everything happens to, and one that nothing happens to: the same bits."""
    folder, whole = tmp_path / "broken", tmp_path / "whole"
    hold = Hold(tmp_path / "hold", env_steps=12_000)
    command = [RESTART, "-n", "2", sys.executable, *train(config_file, folder)]
    process = launch.start(1, *command, **hold.environment)

    killed = rank_in_the_middle(folder, 1, process, 3)
    os.kill(killed["pid"], signal.SIGKILL)
    hold.at(24_000)  # not before: no rank of the first job gets further
    stopped = rank_in_the_middle(folder, 0, process, killed["chunk"] + 4, besides=killed["pid"])
    os.kill(stopped["pid"], signal.SIGSTOP)
    hold.at(36_000)
    told = rank_in_the_middle(folder, 1, process, stopped["chunk"] + 4, besides=stopped["pid"])
    os.kill(told["pid"], signal.SIGUSR1)
    hold.release()  # the signal is pending: it is seen before anything else is done
    status, output = launch.finish(process, launch.PATIENCE)

    assert status == 75, output
    assert f"rank 1 (process {killed['pid']} on" in output and "died while" in output, output
    assert output.count("watchdog of rank 1") == 2, output  # from the rank, and in the wrapper's sentence
    assert f"rank 0 (process {stopped['pid']} on" in output and "has not been heard from for" in output, (
        output
    )
    assert output.count("starting again from the newest checkpoint") == 2, output
    assert output.count("resumed at") == 2, output
    assert "SIGUSR1 on rank 1: saved at" in output and "--resume" in output, output
    steps = {Checkpointer(path).latest() for path in (folder / "checkpoints").iterdir()}
    assert len(steps) == 1, "all shards and what is shared are of the same step"

    for path in (folder, whole):  # on one rank
        status, output = launch.run(1, *train(config_file, path, "--resume"))
        assert status == 0, output
    assert summary(folder)["params_sha256"] == summary(whole)["params_sha256"]
    rows = [str(without_clock(read_metrics(path)).to_pylist()) for path in (folder, whole)]
    assert rows[0] == rows[1]


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
    status, output = launch.run(2, "-c", FAIL.format(error=error))
    assert status == code and text in output, output


def test_an_error_on_all_ranks_is_said_once():
    script = FAIL.replace("if ranks.rank == 1", "if True").format(error="UserError('no such thing')")
    # ranks of a busy machine may fail seconds after each other
    script = "from jaxrl_hpc.comm import ranks\nranks.AGREE_SECONDS = 3000.0\n" + script
    status, output = launch.run(3, "-c", script)
    assert status != 0 and output.count("no such thing") == 1, output
