"""The run directory, its summary and its lock."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_hpc
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runs import lock
from jaxrl_hpc.runs.directory import SUMMARY_KEYS, RunDirectory, code_version

REPOSITORY = Path(__file__).parents[2]


def test_new_run_and_existing_run(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "a"
    with pytest.raises(UserError, match="there is no run directory"):
        RunDirectory.existing(path)
    run = RunDirectory.open(path, resume=True)  # a job script may always say --resume
    with run.lock():
        RunDirectory.open(path, resume=False)  # nothing there yet but the lock
        with pytest.raises(UserError, match=r"no config\.yaml"):
            RunDirectory.existing(path)
        run.write_config({"agent": {"name": "dqn", "learning_rate": 1e-5, "widths": [64, 64]}})
    with pytest.raises(UserError, match=r"exists already: continue it with --resume"):
        RunDirectory.open(path, resume=False)
    assert RunDirectory.open(path, resume=True).read_config()["agent"]["learning_rate"] == 1e-5
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name, message in (("other", "not empty and not a run"), ("file", "is a file")):
        with pytest.raises(UserError, match=message):
            RunDirectory.open(tmp_path / name, resume=True)
    with pytest.raises(UserError, match="cannot make"):
        RunDirectory.open("/proc/nowhere/run", resume=False)


def test_summary_is_plain_json_with_all_keys(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert run.read_summary() is None
    values = dict.fromkeys(SUMMARY_KEYS, 1) | {"eval_return_interval": (np.float32(0.5), float("nan"))}
    values |= dict.fromkeys(
        ("agent", "env", "workflow", "eval_spread", "params_sha256", "version", "commit"), "x"
    )
    values |= {
        "eval_return_score": jnp.float32(2.5),
        "more": {"a": np.int64(2), "b": True, "c": np.arange(3)},
    }
    run.write_summary(values)
    summary = json.loads((tmp_path / "summary.json").read_text(), parse_constant=lambda name: 1 / 0)
    assert summary == run.read_summary()
    assert summary["eval_return_interval"] == [0.5, None]
    assert summary["eval_return_score"] == 2.5 and summary["more"] == {"a": 2, "b": True, "c": [0, 1, 2]}
    with pytest.raises(ValueError, match="lacks agent, commit"):
        run.write_summary({key: 1 for key in SUMMARY_KEYS if key not in ("agent", "commit")})
    assert run.read_summary() == summary


@pytest.mark.parametrize("content", ["{", "[1]", "\udcff"])
def test_broken_small_files_are_named(tmp_path: Path, content: str) -> None:
    run = RunDirectory(tmp_path)
    run.summary_path.write_text(content, errors="surrogateescape")
    run.config_path.write_text(content, errors="surrogateescape")
    with pytest.raises(UserError, match=r"summary\.json"):
        run.read_summary()
    with pytest.raises(UserError, match=r"config\.yaml"):
        run.read_config()


def test_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from jaxrl_hpc.runs.lock import RunLock\n"
        "with RunLock(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    )
    path = tmp_path / "run.lock"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    child = subprocess.Popen(
        [sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "held\n"
        with (
            pytest.raises(UserError, match=f"is being written by process {child.pid} on "),
            lock.RunLock(path),
        ):
            pass
        child.send_signal(signal.SIGKILL)
        child.wait()
        with lock.RunLock(path):
            assert json.loads(path.read_text())["pid"] == os.getpid()
        assert path.read_text() == ""
    finally:
        child.kill()
        child.stdout.close()
        child.wait()


def test_lock_of_another_host_counts_while_it_is_fresh(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv("PBS_JOBID", raising=False)
    path = tmp_path / "run.lock"
    record = json.dumps({"host": "elsewhere", "pid": 7, "job": "42"})
    path.write_text(record)
    with pytest.raises(UserError, match="process 7 on elsewhere; if it is gone"), lock.RunLock(path):
        pass
    assert path.read_text() == record
    monkeypatch.setenv("SLURM_JOB_ID", "42")  # requeued on another node
    with lock.RunLock(path):
        pass
    monkeypatch.delenv("SLURM_JOB_ID")
    path.write_text(record)
    old = time.time() - 2 * lock.STALE_SECONDS
    os.utime(path, (old, old))
    with lock.RunLock(path):
        pass


def test_holder_keeps_its_lock_fresh(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.01)
    path = tmp_path / "run.lock"
    with lock.RunLock(path):
        os.utime(path, (1, 1))
        for _ in range(60_000):
            if path.stat().st_mtime > 1:
                break
            time.sleep(0.01)
        assert path.stat().st_mtime > 1


def test_code_version_names_this_checkout() -> None:
    version = code_version()
    assert version["version"] == jaxrl_hpc.__version__
    if (REPOSITORY / ".git").exists():
        head = subprocess.run(
            ["git", "-C", REPOSITORY, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        )
        assert (
            version["commit"] is not None and version["commit"].removesuffix("-dirty") == head.stdout.strip()
        )
