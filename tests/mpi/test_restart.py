"""The wrapper names ranks whatever the launcher says of them, and knows when not to start again."""

import importlib.util
import json
import sys

import pytest

from tests.mpi.launch import ROOT

spec = importlib.util.spec_from_file_location("mpi_restart", ROOT / "scripts" / "mpi_restart.py")
mpi_restart = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mpi_restart)
MPICH = "=   BAD TERMINATION OF ONE OF YOUR PROCESSES\n=   PID 4242 RUNNING AT node7\n=   EXIT CODE: 9\n"


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "ranks").mkdir()
    record = {"rank": 3, "pid": 4242, "host": "node7", "phase": "training", "chunk": 12}
    (tmp_path / "ranks" / "3.json").write_text(json.dumps(record))
    (tmp_path / "ranks" / "4.json").write_text("half a")
    return tmp_path


@pytest.mark.parametrize(
    "output, expected",
    [
        (MPICH, ["rank 3 (process 4242 on node7) died while training, chunk 12"]),
        (MPICH.replace("4242", "1"), ["a rank that had not begun (process 1 on node7) died"]),
        ("prterun noticed that process rank 2 with PID 77 on node x exited on signal 9", ["rank 2 died"]),
        ("srun: error: node1: task 5: Killed\n", ["rank 5 died"]),
        (
            "watchdog of rank 0 (training, chunk 8): rank 1 has not been heard of for 4 s; the job ends\n"
            + MPICH,
            ["watchdog of rank 0 (training, chunk 8): rank 1 has not been heard of for 4 s"],
        ),
        ("rank 1 of 4 failed and ends the job:\nTraceback…\n" + MPICH, ["rank 1 of 4 failed"]),
        ("nothing of use", []),
    ],
)
def test_who_broke(run_dir, output, expected):
    assert mpi_restart.blame(output, run_dir) == expected


def started(monkeypatch, tmp_path, statuses):
    calls = []

    def run_once(command, run_dir):
        calls.append(command)
        return statuses[len(calls) - 1], []

    monkeypatch.setattr(mpi_restart, "run_once", run_once)
    words = ["mpi_restart.py", "-n", "3", "--restarts", "2", "--pause", "0"]
    monkeypatch.setattr(sys, "argv", [*words, "jaxrl-hpc", "train", "x", f"--run-dir={tmp_path}"])
    return mpi_restart.main(), calls


@pytest.mark.parametrize(
    "statuses, number", [([0], 1), ([75], 1), ([2], 1), ([9, 0], 2), ([137, 76, 75], 3), ([9, 9, 9], 3)]
)
def test_when_it_starts_again(monkeypatch, tmp_path, statuses, number):
    status, calls = started(monkeypatch, tmp_path, statuses)
    assert status == statuses[-1] and len(calls) == number
    assert all(call[1:3] == ["-n", "3"] and call[-1] == "--resume" for call in calls)


def test_a_run_without_a_folder_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["mpi_restart.py", "jaxrl-hpc", "train", "x"])
    with pytest.raises(SystemExit, match="--run-dir"):
        mpi_restart.main()
