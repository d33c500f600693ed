"""Whose configs may name code: this user's runs and those on the command line; others need --trust."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

from jaxrl_hpc.cli.main import main
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.user_code import check_trusted, named_code, remember_trusted, trusted_folder
from tests import small

CODE = {"env": {"name": "their_env:Env"}}


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    """A state folder of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_what_counts_as_code():
    config = {
        "agent": {"name": "my.agents:make", "network": {"hidden": [4]}},
        "env": {"name": "gymnasium", "id": "ale_py:ALE/Pong-v5", "kwargs": {"deep": ["other:Thing"]}},
        "replay": {"name": "jaxrl_hpc.replay.uniform:make"},
        "workflow": 5,
        "run": {"replay_schedule": "host:folder"},
    }
    assert named_code(config) == {
        "agent.name": "my.agents:make",
        "env.id": "ale_py:ALE/Pong-v5",
        "env.kwargs.deep.0": "other:Thing",
    }
    assert named_code(small.data()) == {} and named_code({"agent": "12:30"}) == {}


def test_only_this_user_here_with_this_code(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    check_trusted(run, small.data())  # names no code
    with pytest.raises(UserError, match=r"env\.name imports the module 'their_env'.*--trust"):
        check_trusted(run, CODE)
    check_trusted(run, CODE, trust=True)
    remember_trusted(run, CODE)
    check_trusted(run, CODE)
    check_trusted(os.path.relpath(run), CODE)  # by where it is, however it is named
    with pytest.raises(UserError, match="'other'"):  # the config was changed since
        check_trusted(run, {"env": {"name": "other:Env"}})
    with pytest.raises(UserError, match="--trust"):  # a copy may be anybody's
        check_trusted(tmp_path / "copy", CODE)


def test_a_state_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    remember_trusted(tmp_path, CODE)
    with pytest.raises(UserError, match="--trust"):
        check_trusted(tmp_path, CODE)


def test_writers_at_the_same_time(tmp_path):
    folders = [tmp_path / str(i % 3) for i in range(12)]
    threads = [threading.Thread(target=remember_trusted, args=(folder, CODE)) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for folder in folders:
        check_trusted(folder, CODE)
    assert len(list(trusted_folder().iterdir())) == 3


ENV = """
from pathlib import Path
Path("imported").touch()
from gymnax.environments.classic_control.cartpole import CartPole as Env
"""


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """A run directory whose config names a module of the working directory; the module says when it runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("their_env.py").write_text(ENV)
    run = Path("runs/theirs")
    run.mkdir(parents=True)
    data = small.data(env={"name": "their_env:Env"})
    (run / "config.yaml").write_text(yaml.safe_dump(data))
    yield run
    sys.modules.pop("their_env", None)


@pytest.mark.parametrize("command", ["evaluate", "play", "export"])
def test_commands_refuse_before_they_import(command, theirs, capsys):
    assert main([command, str(theirs)]) == 2
    line = capsys.readouterr().err
    assert "imports the module 'their_env'" in line and line.count("\n") == 1 and "--trust" in line
    assert not Path("imported").exists()
    assert main([command, str(theirs), "--trust"]) == 2  # there is no checkpoint
    assert Path("imported").exists() and "checkpoint" in capsys.readouterr().err


def test_a_report_imports_nothing(theirs, capsys):
    (theirs / "metrics").mkdir()
    main(["report", str(theirs)])
    assert not Path("imported").exists()


def test_resuming_does_not_import_what_only_the_run_names(theirs, tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(small.data()))
    assert main(["train", str(path), "--run-dir", str(theirs), "--resume"]) == 2
    assert "env.name was 'their_env:Env'" in capsys.readouterr().err
    assert not Path("imported").exists()


def test_sweeps(theirs, tmp_path, capsys):
    spec = {"base": small.data(env={"name": "their_env:Env"}), "axes": {"agent.gamma": [0.9, 0.99]}}
    Path("sweep.yaml").write_text(yaml.safe_dump(spec))
    Path("theirs/plans").mkdir(parents=True)
    shutil.copy("sweep.yaml", "theirs/plans/1.yaml")
    for arguments in (["sweep", "status", "theirs"], ["sweep", "run", "theirs"], ["report", "theirs"]):
        assert main(arguments) == 2
        assert "base.env.name imports the module 'their_env'" in capsys.readouterr().err
    assert not Path("imported").exists()
    assert main(["sweep", "status", "theirs", "--trust"]) == 0
    assert main(["sweep", "submit", "sweep.yaml", "--dry-run"]) == 0  # given on the command line
    assert " --trust --task " in capsys.readouterr().out


def test_plans_of_others_in_the_folder_of_a_sweep(theirs, capsys):
    Path("mine.yaml").write_text(yaml.safe_dump({"base": small.data(), "axes": {"agent.gamma": [0.9]}}))
    Path("theirs/plans").mkdir(parents=True)
    other = {"base": small.data(env={"name": "their_env:Env"}), "axes": {"agent.gamma": [0.9]}}
    Path("theirs/plans/1.yaml").write_text(yaml.safe_dump(other))
    assert main(["sweep", "submit", "mine.yaml", "--dry-run", "--dir", "theirs"]) == 2
    assert "imports the module 'their_env'" in capsys.readouterr().err
    assert not Path("imported").exists()


@pytest.mark.full
def test_own_runs_need_no_flag(theirs, capsys):
    path = Path("own.yaml")
    path.write_text(yaml.safe_dump(small.data(env={"name": "their_env:Env"}, run={"total_env_steps": 1200})))
    assert main(["train", str(path), "--run-dir", "runs/own"]) == 0
    assert main(["evaluate", "runs/own", "--episodes", "2"]) == 0
    shutil.copytree("runs/own", "runs/copy")
    capsys.readouterr()
    assert main(["evaluate", "runs/copy", "--episodes", "2"]) == 2
    assert "--trust" in capsys.readouterr().err
    assert main(["evaluate", "runs/copy", "--episodes", "2", "--trust"]) == 0


def test_the_working_directory_comes_last(tmp_path):
    """A file of the working directory does not hide an installed package of its name."""
    (tmp_path / "yaml.py").write_text("raise SystemExit('the wrong yaml')")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    command = [sys.executable, "-m", "jaxrl_hpc.cli.main", "evaluate", "nowhere"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and "there is no run directory nowhere" in done.stderr
