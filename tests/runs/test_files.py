"""Overwriting runs, the trash, and the list of runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxrl_hpc.cli.main import main
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runs import files as run_files
from jaxrl_hpc.runs.directory import SUMMARY_KEYS, RunDirectory
from jaxrl_hpc.runs.lock import RunLock

KNOWN = [
    "config.yaml",
    "summary.json",
    "progress.json",
    "trace.json",
    "report.html",
    "schedule-0.csv",
    "planning.csv",
    "metrics/part-0000000000-0000000008.parquet",
    "metrics/part-0000000000-0000000008.parquet.123.tmp",
    "checkpoints/00000001.rows",
    "checkpoints/shared/00000001.manifest",
    "checkpoints/shard-0003/00000001.arrays",
    "checkpoints/actors-0000/damaged/00000000.rows",
    "checkpoints/first-save",
    "tensorboard/events.out.tfevents.1.host",
    "tracking/wandb.json",
    "plots/learning_curve.png",
    "export/policy.py",
    "wandb/offline-run-1/files/config.yaml",
]
FOREIGN = [
    "thesis.tex",
    "notes/config.yaml",
    "metrics/notes.txt",
    "metrics/part-a.parquet",
    "checkpoints/best.rows",
    "checkpoints/00000001.rows.bak",
    "plots/mine.png",
    "export/driver.py",
    "config.yaml.bak",
]


def write(folder: Path, names: list[str], text: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def files(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir() or p.is_symlink()}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory.open(tmp_path / "runs" / "a", resume=False)
    write(made.path, KNOWN, "old")
    return made


def overwrite(path: Path) -> Path | None:
    run = RunDirectory.open(path, resume=False, overwrite=True)
    with run.lock():
        return run.move_aside()


def test_overwriting_moves_what_a_run_writes_and_nothing_else(run: RunDirectory) -> None:
    write(run.path, FOREIGN, "mine")
    moved = overwrite(run.path)
    assert moved == run.path.parent / ".trash" / "a"
    assert files(moved) == {*KNOWN, run_files.MARKER}
    assert files(run.path) == {*FOREIGN, run_files.MARKER, "run.lock"}
    RunDirectory.open(run.path, resume=False)  # and a new run may begin beside the foreign files
    assert not (run.path / "tensorboard").exists()


def test_the_last_overwritten_run_is_kept_whatever_fails_after_it(run: RunDirectory) -> None:
    overwrite(run.path)
    assert overwrite(run.path) is None  # a run that broke before it began does not replace a real one
    trash = run.path.parent / ".trash" / "a"
    assert (trash / "config.yaml").read_text() == "old"
    write(run.path, ["config.yaml", "summary.json"], "new")
    write(trash, ["mine.txt"], "mine")
    overwrite(run.path)
    assert files(trash) == {"config.yaml", "summary.json", "mine.txt", run_files.MARKER}
    assert (trash / "config.yaml").read_text() == "new"


def test_an_interrupted_move_is_continued(run: RunDirectory, monkeypatch) -> None:
    replace, calls = os.replace, iter(range(100))

    def failing(*arguments: Path) -> None:
        if next(calls) == 5:
            raise OSError(28, "No space left on device")
        replace(*arguments)

    monkeypatch.setattr(run_files.os, "replace", failing)
    with pytest.raises(UserError, match="No space left"):
        overwrite(run.path)
    monkeypatch.undo()
    for resume in (True, False):
        with pytest.raises(UserError, match=r"holds files of a run .* but no config\.yaml"):
            RunDirectory.open(run.path, resume=resume)
    overwrite(run.path)
    assert files(run.path.parent / ".trash" / "a") == {*KNOWN, run_files.MARKER}


def test_a_folder_without_marker_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path / "a", ["config.yaml", "thesis.tex"], "mine")
    with pytest.raises(UserError, match="not known to be a run directory"):
        overwrite(tmp_path / "a")
    with pytest.raises(UserError, match="not known to be a run directory"):
        run_files.discard(tmp_path / "a")
    assert files(tmp_path) == {"a/config.yaml", "a/thesis.tex"}


def test_links_are_not_followed(run: RunDirectory, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(run.path)
    with pytest.raises(UserError, match="is a link"):
        overwrite(link)
    elsewhere = tmp_path / "elsewhere"
    write(elsewhere, ["part-0000000000-0000000008.parquet"], "mine")
    (run.path / "data").symlink_to(elsewhere)
    write(tmp_path, ["real.yaml"], "mine")
    (run.path / "config.yaml").unlink()
    (run.path / "config.yaml").symlink_to(tmp_path / "real.yaml")
    overwrite(run.path)
    assert (tmp_path / "real.yaml").read_text() == "mine" and files(run.path) >= {"data"}
    (run.path / "metrics").symlink_to(elsewhere)
    write(run.path, ["config.yaml"], "new")
    with pytest.raises(UserError, match=r"metrics is a link"):
        overwrite(run.path)
    assert files(elsewhere) == {"part-0000000000-0000000008.parquet"}


def test_a_trash_of_somebody_else_is_left_alone(run: RunDirectory, tmp_path: Path) -> None:
    write(run.path.parent / ".trash" / "a", ["config.yaml"], "mine")
    with pytest.raises(UserError, match="does not hold a run"):
        overwrite(run.path)
    assert files(run.path) >= set(KNOWN)
    emptied = run_files.empty_trash(run.path.parent / ".trash")
    assert emptied.runs == [] and emptied.left == [run.path.parent / ".trash" / "a"]


def test_a_running_run_is_not_overwritten(run: RunDirectory) -> None:
    with run.lock(), pytest.raises(UserError, match="is being written by"):
        overwrite(run.path)
    assert files(run.path) >= set(KNOWN)


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_a_lock_that_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "precious").write_text("years of work")
    path = tmp_path / "run.lock"
    if kind == "link":
        path.symlink_to(tmp_path / "precious")
    else:
        path.mkdir()
    with pytest.raises(UserError, match="cannot lock"), RunLock(path):
        pass
    assert (tmp_path / "precious").read_text() == "years of work"


def test_emptying_the_trash(run: RunDirectory, tmp_path: Path, capsys) -> None:
    runs = run.path.parent
    overwrite(run.path)
    write(runs / ".trash" / "a", ["mine.txt"], "mine")
    assert main(["runs", "--empty-trash", str(runs)]) == 0
    out = capsys.readouterr().out
    assert "deleted 1 run(s)" in out and f"{runs / '.trash' / 'a'} is left" in out
    assert files(runs / ".trash") == {"a/mine.txt"}
    (runs / ".trash" / "a" / "mine.txt").unlink()
    write(run.path, ["config.yaml"], "new")
    overwrite(run.path)
    assert main(["runs", "--empty-trash", str(runs)]) == 0
    assert not (runs / ".trash").exists() and run_files.is_marked(run.path)


def test_listing(tmp_path: Path, capsys) -> None:
    runs = tmp_path / "runs"
    assert main(["runs", str(runs)]) == 2
    assert "training makes one in the working directory" in capsys.readouterr().err
    config = {"agent": {"name": "dqn"}, "env": {"name": "CartPole-v1"}, "run": {"name": "x"}}
    for name in ("done", "deep/half", "broken", "bare"):
        run = RunDirectory.open(runs / name, resume=False)
        run.write_config(config)
    done = dict.fromkeys(SUMMARY_KEYS, 1) | {"env_steps": 5000, "eval_return_score": 99.5}
    RunDirectory(runs / "done").write_summary(done)
    half = {"env_steps": 2000, "total_env_steps": 8000, "eval_return": 12.25}
    RunDirectory(runs / "deep/half").write_progress(half)
    (runs / "broken" / "config.yaml").write_text("{")
    overwrite(runs / "bare")
    (runs / "sweep" / "plans").mkdir(parents=True)
    write(runs / "sweep" / "trials" / "t", ["config.yaml", "metrics/x"], "")
    code = (
        "import sys; from jaxrl_hpc.cli.main import main\n"
        f"assert main(['runs', {str(runs)!r}, '--json']) == 0\n"
        "assert not {'jax', 'numpy', 'pyarrow'} & set(sys.modules)"
    )
    done_ = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    found = {Path(entry["path"]).name: entry for entry in json.loads(done_.stdout)}
    assert set(found) == {"done", "half", "broken", "bare"}
    assert (found["done"]["state"], found["done"]["score"]) == ("finished", 99.5)
    assert found["half"]["state"] == "stopped" and found["half"]["env"] == "CartPole-v1"
    assert found["broken"]["state"] == "damaged" and found["bare"]["agent"] is None
    assert main(["runs", str(runs)]) == 0
    out = capsys.readouterr().out
    assert "2,000 (25%)" in out and "99.50" in out
