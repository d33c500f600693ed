"""Actors that die, stop or are told to go: the job ends and says who, and goes on from its checkpoint."""

import json
import os
import signal
import sys
import time
from collections import Counter

import pytest
import yaml

from jaxrl_hpc.io.checkpoint import Checkpointer
from tests.mpi import apart, launch

pytestmark = [pytest.mark.mpi, pytest.mark.slow, launch.needs_mpi, pytest.mark.timeout(1800)]
RESTART = str(launch.ROOT / "scripts" / "mpi_restart.py")


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


def test_an_actor_killed_stopped_and_told_to_go(tmp_path):
    data = json.loads(json.dumps(apart.DQN))
    data["workflow"]["deadline_seconds"] = 6.0
    data["run"] |= {"total_env_steps": 400_000, "checkpoint_seconds": 0.3, "record_schedule": True}
    config = tmp_path / "small.yaml"
    config.write_text(yaml.safe_dump(data))
    folder = tmp_path / "run"
    train = ["-m", "jaxrl_hpc.cli.main", "train", str(config), "--run-dir", str(folder)]
    process = launch.start(1, RESTART, "-n", "3", sys.executable, *train)

    killed, step = in_the_middle(folder, 2, process, 0)
    os.kill(killed["pid"], signal.SIGKILL)
    stopped, step = in_the_middle(folder, 1, process, step)
    os.kill(stopped["pid"], signal.SIGSTOP)
    told, step = in_the_middle(folder, 2, process, step)
    os.kill(told["pid"], signal.SIGUSR1)
    status, output = launch.finish(process, 300)

    assert status == 75, output
    assert f"rank 2 (process {killed['pid']} on" in output and "died while" in output, output
    assert f"rank 1 (process {stopped['pid']} on" in output and "has not been heard of for" in output, output
    assert output.count("resumed at") == 2, output
    assert "SIGUSR1 on rank 2: saved at" in output, output
    entries = apart.schedule(folder)
    kept = apart.kept(folder)
    assert kept["taken"] == len(entries) and kept["lost"] == 0
    assert len({tuple(entry[:2]) for entry in entries}) == len(entries), "nothing was learned from twice"
    for actor, number in Counter(actor for actor, *_ in entries).items():
        assert sorted(s for a, s, *_ in entries if a == actor) == list(range(number)), "nor left out"
