"""SIGKILL at random moments: nothing is lost, nothing is doubled, the result has the same bits."""

import json
import os
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

from jaxrl_hpc.checkpoint.checkpointer import Checkpointer
from jaxrl_hpc.metrics.parquet import read_metrics, without_clock
from jaxrl_hpc.runtime.train import build, lanes_of, make_runner
from tests import small
from tests.holding import Hold

KILLS = 10
SETTINGS = {
    "total_env_steps": 48_000,
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


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_killed_again_and_again(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(small.data(run=SETTINGS)))
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run(command(config, whole), check=True, capture_output=True)
    dice = random.Random(7)
    kills = saved_at_kill = 0
    hold = Hold(tmp_path / "hold")
    while kills < KILLS:
        hold.at((kills + 1) * SETTINGS["total_env_steps"] // (KILLS + 1))  # it cannot finish before the last
        process = subprocess.Popen(
            command(config, broken, "--resume"),
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | hold.environment,
        )
        assert process.stderr is not None
        for line in process.stderr:  # the first progress line: training has begun
            if "training for" in line or "continuing from" in line:
                break
        while kills % 2 and process.poll() is None and not any((broken / "checkpoints").glob("*.manifest")):
            time.sleep(0.01)  # every other kill comes after a checkpoint, however slow the machine
        time.sleep(dice.uniform(0.0, 0.8))  # when to strike, not synchronisation
        process.kill()
        assert process.wait() == -signal.SIGKILL
        process.stderr.close()
        kills += 1
        saved_at_kill += any((broken / "checkpoints").glob("*.manifest"))
    assert not (broken / "summary.json").exists()
    assert saved_at_kill >= KILLS // 2, "hardly any kill came after a checkpoint"
    subprocess.run(command(config, broken, "--resume"), check=True, capture_output=True)

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
    runner = make_runner(config, build(config), lanes_of(config))
    names = {jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(runner.state_shape())}
    for part in (".learner", ".replay", ".rollout.env", ".rollout.key", ".key", ".iteration", ".env_steps"):
        assert any(name.startswith(part) for name in names), part
