"""Half an hour of training with evaluations and checkpoints: resident memory stays flat."""

import os
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import yaml

from tests import small

MINUTES = float(os.environ.get("JAXRL_HPC_SOAK_MINUTES", "30"))


@pytest.mark.slow
def test_memory_stays_flat(tmp_path):
    settings = {
        "total_env_steps": 2**31 - 1,
        "log_every": 2000,
        "eval_every": 10_000,
        "checkpoint_seconds": 5.0,
        "tensorboard": True,
    }
    config = tmp_path / "soak.yaml"
    config.write_text(yaml.safe_dump(small.data(run=settings)))
    command = [sys.executable, "-m", "jaxrl_hpc.cli.main", "train", str(config)]
    command += ["--run-dir", str(tmp_path / "run")]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    watched = psutil.Process(process.pid)
    begin, samples = time.monotonic(), []
    try:
        while time.monotonic() - begin < 60 * MINUTES:
            time.sleep(5)  # between samples
            assert process.poll() is None, "the run ended early"
            samples.append(watched.memory_info().rss / 2**20)
    finally:
        process.terminate()
        assert process.wait(timeout=120) == 75
    # the first fifth is start-up: compiling, first save, first evaluation
    settled = np.array(samples[len(samples) // 5 :])
    early, late = settled[: len(settled) // 4].mean(), settled[-len(settled) // 4 :].mean()
    print(f"resident MiB: {early:.1f} early, {late:.1f} late, over {MINUTES:g} minutes")
    assert abs(late - early) <= 0.01 * early
