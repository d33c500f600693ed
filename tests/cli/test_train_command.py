"""`train` by hand: numbers for runs without a name, refusals elsewhere, and --dry-run."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from jaxrl_hpc.cli import train
from jaxrl_hpc.cli.main import main
from jaxrl_hpc.runs.naming import BATCH_JOBS, claim_folder, release_folder
from tests import small


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with a config that has no name for its runs."""
    monkeypatch.chdir(tmp_path)
    for name in BATCH_JOBS:
        monkeypatch.delenv(name, raising=False)
    data = small.data(run={"total_env_steps": 1200, "tensorboard": False})
    data["run"].pop("name", None)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(data))
    return tmp_path


def test_runs_without_a_name_get_numbers(folder, capsys, monkeypatch):
    for number, name in enumerate(("tiny", "tiny-2")):
        assert main(["train", "tiny.yaml", f"run.seed={number}"]) == 0
        assert capsys.readouterr().out.splitlines()[0] == f"run directory runs/{name}"
        saved = yaml.safe_load((folder / "runs" / name / "config.yaml").read_text())
        assert saved["run"]["seed"] == number
    # not where a name was given, nor in a batch job
    before = sorted(Path("runs").rglob("*"))
    for arguments in (["run.name=tiny"], ["--run-dir", "runs/tiny"]):
        assert main(["train", "tiny.yaml", *arguments]) == 2
        err = capsys.readouterr().err
        assert "--overwrite (overwrite=True)" in err and "--resume (in Python resume=True)" in err
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert main(["train", "tiny.yaml"]) == 2
    assert "runs/tiny exists already" in capsys.readouterr().err
    monkeypatch.delenv("SLURM_JOB_ID")
    # a refused run leaves no folder behind
    assert main(["train", "tiny.yaml", "replay.capacity=1000000000"]) == 2
    assert main(["train", "tiny.yaml", "agent.gama=1"]) == 2
    assert sorted(Path("runs").rglob("*")) == before
    # the time of an earlier run of the same config, and the name that the next one would get
    capsys.readouterr()
    assert main(["train", "tiny.yaml", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "as measured in runs/tiny" in out and "runs/tiny-3" in out
    assert sorted(Path("runs").rglob("*")) == before


def test_a_name_in_the_file_counts(folder, capsys):
    data = yaml.safe_load(Path("tiny.yaml").read_text())
    data["run"]["name"] = "mine"
    Path("tiny.yaml").write_text(yaml.safe_dump(data))
    taken = folder / "runs" / "mine"
    taken.mkdir(parents=True)
    (taken / "config.yaml").write_text("agent: {name: dqn}\n")
    assert main(["train", "tiny.yaml"]) == 2
    assert "runs/mine exists already" in capsys.readouterr().err


def test_two_processes_never_get_the_same_folder(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda _: claim_folder(tmp_path / "runs", "x"), range(16)))
    assert len(set(paths)) == 16
    assert {path.name for path in paths} == {"x", *(f"x-{number}" for number in range(2, 17))}
    (paths[0] / "config.yaml").write_text("")
    for path in paths:
        release_folder(path)
    assert list((tmp_path / "runs").iterdir()) == [paths[0]]


def test_an_interrupt_before_the_run_begins_leaves_no_folder(tmp_path):
    """Ctrl-C ends the process at once then: nothing else would remove it."""
    there = []
    before = signal.signal(signal.SIGINT, lambda *_: there.append((tmp_path / "runs" / "x").exists()))
    try:
        with train.claimed(tmp_path / "runs" / "x") as path:
            assert path.is_dir()
            signal.raise_signal(signal.SIGINT)
        with train.claimed(tmp_path / "runs" / "x") as path:
            (path / "config.yaml").write_text("")
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert there == [False, True, True], "and whoever was to hear of it heard of it"


def test_dry_run_says_what_would_be_trained(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["train", "tiny.yaml", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert max(len(line) for line in out.splitlines()) <= 80
    assert "CartPole-v1: observations float32[4], 2 actions" in out
    assert " parameters in 4 arrays, " in out and "unknown: runs has no finished run of this config" in out
    assert "nothing was trained" in out and not (folder / "runs").exists()
    assert main(["train", "tiny.yaml", "--dry-run", "replay.capacity=1000000000"]) == 2
    assert "lower replay.capacity" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize("name", ["workflows/cartpole_apex_async", "workflows/cartpole_ppo_sharded"])
def test_dry_run_of_a_job_in_one_process(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", name, "--dry-run"]) == 0
    assert "depends on the ranks of the job" in capsys.readouterr().out


def test_banners_of_xla_are_switched_off_before_jax_is_loaded():
    variables = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    code = "import os, sys; from jaxrl_hpc.cli.main import main; main(['list', 'agents'])\n"
    code += "assert os.environ['TF_CPP_MIN_LOG_LEVEL'] == '3' and 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=variables, capture_output=True)
