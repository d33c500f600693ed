"""SIGKILL at random moments: nothing is lost, nothing is doubled, the result has the same bits."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml

from jaxrl_hpc.io.checkpoint import Checkpointer
from jaxrl_hpc.io.metrics import read_metrics, without_clock
from jaxrl_hpc.train import build, lanes_of, make_fleet
from tests import small

KILLS = 10
SETTINGS = {
    "total_env_steps": 120_000,
    "seeds": 2,
    "log_every": 1000,
    "eval_every": 8000,
    "checkpoint_seconds": 0.05,
    "tensorboard": False,
}


def command(config: Path, folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "jaxrl_hpc.cli.main", "train", str(config), "--run-dir", str(folder), *more]


def checkpoint_leaves(folder: Path) -> dict[str, np.ndarray]:
    _, leaves, _ = Checkpointer(folder / "checkpoints").load()
    plain = {k: jax.random.key_data(v) if jax.dtypes.issubdtype(v.dtype, jax.dtypes.prng_key) else v
             for k, v in leaves.items()}  # fmt: skip
    return {k: np.asarray(v) for k, v in plain.items()}


@pytest.mark.timeout(900)
def test_killed_again_and_again(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(small.data(run=SETTINGS)))
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run(command(config, whole), check=True, capture_output=True, timeout=600)
    seconds = json.loads((whole / "summary.json").read_text())["wall_seconds"]

    dice = random.Random(7)
    kills = saved_at_kill = 0
    while kills < KILLS:
        process = subprocess.Popen(command(config, broken, "--resume"), stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        for line in process.stderr:  # the first progress line: training has begun
            if " to " in line and "steps" in line:
                break
        while kills % 2 and process.poll() is None and not any((broken / "checkpoints").glob("*.manifest")):
            time.sleep(0.01)  # every other kill comes after a checkpoint, however slow the machine
        time.sleep(dice.uniform(0.0, 1.6 * seconds / KILLS))  # when to strike, not synchronisation
        process.kill()
        assert process.wait() in (-signal.SIGKILL, 0)
        process.stderr.close()
        if (broken / "summary.json").exists():
            break
        kills += 1
        saved_at_kill += any((broken / "checkpoints").glob("*.manifest"))
    assert kills >= KILLS, f"finished after {kills} kills: make the run longer"
    assert saved_at_kill >= KILLS // 2, "hardly any kill came after a checkpoint"
    subprocess.run(command(config, broken, "--resume"), check=True, capture_output=True, timeout=600)

    summaries = [json.loads((f / "summary.json").read_text()) for f in (whole, broken)]
    assert summaries[0]["params_sha256"] == summaries[1]["params_sha256"]
    rows = [str(without_clock(read_metrics(f)).to_pylist()) for f in (whole, broken)]
    assert rows[0] == rows[1]
    first, second = checkpoint_leaves(whole), checkpoint_leaves(broken)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


def test_the_whole_state_is_in_the_checkpoint():
    """What the test above compares is everything: learner, replay with priorities, copies, keys, counters."""
    config = small.config()
    fleet = make_fleet(config, build(config), lanes_of(config))
    names = {jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(fleet.state_shape())}
    for part in (".learner", ".replay", ".rollout.env", ".rollout.key", ".key", ".iteration", ".env_steps"):
        assert any(name.startswith(part) for name in names), part
