"""The wrapper names ranks whatever the launcher says of them, and knows when not to start again."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time

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
            "watchdog of rank 0 (training, chunk 8): rank 1 has not been heard from for 4 s; the job ends\n"
            + MPICH,
            ["watchdog of rank 0 (training, chunk 8): rank 1 has not been heard from for 4 s"],
        ),
        ("rank 1 of 4 failed and ends the job:\nTraceback…\n" + MPICH, ["rank 1 of 4 failed"]),
        (  # the guard that spoke first knows; the launcher names any of those that it ended then
            "guard: process 77 on node8 died by signal 9 at 12.5\n"
            "guard: process 4242 on node7 died by signal 9 at 12.25\n" + MPICH.replace("4242", "78"),
            ["rank 3 (process 4242 on node7) died while training, chunk 12"],
        ),
        ("nothing of use", []),
    ],
)
def test_who_broke(run_dir, output, expected):
    assert mpi_restart.blame(output, run_dir) == expected


GUARD = [sys.executable, str(ROOT / "scripts" / "mpi_restart.py"), "--guard", sys.executable, "-c"]


@pytest.mark.parametrize("code, status", [("raise SystemExit(75)", 75), ("pass", 0)])
def test_a_guard_ends_as_its_process_does(code, status):
    done = subprocess.run([*GUARD, code], capture_output=True, text=True, check=False)
    assert done.returncode == status and "guard:" not in done.stderr


def test_a_command_that_is_not_there_is_a_mistake_in_the_input():
    done = subprocess.run([*GUARD[:3], "no-such-command"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.returncode in mpi_restart.FINAL
    assert done.stderr == "error: cannot start no-such-command: No such file or directory\n"


def test_output_that_is_no_text_is_passed_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(mpi_restart, "stop", mpi_restart.Stop())
    code = "import sys; sys.stdout.buffer.write(b'half of \\xe2\\x80 a dash\\nrank 1 of 2 failed\\n')"
    found = mpi_restart.run_once([sys.executable, "-c", code], tmp_path)
    assert found == (0, ["rank 1 of 2 failed"])
    assert "half of" in capsys.readouterr().out


def test_a_guard_tells_of_a_killed_process_and_dies_alike():
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run([*GUARD, code], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert mpi_restart.BY_GUARD.search(done.stderr), done.stderr


def test_a_guard_passes_signals_on_and_takes_its_process_with_it():
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('told', flush=True))\n"
        "print(os.getpid(), flush=True)\n"
        "while True: time.sleep(0.05)\n"
    )
    process = subprocess.Popen([*GUARD, code], stdout=subprocess.PIPE, text=True)
    pid = int(process.stdout.readline())
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline() == "told\n"
    process.kill()
    assert process.stdout.read() == "", "its process has gone too: nobody holds the pipe"
    process.wait()
    process.stdout.close()
    with pytest.raises(ProcessLookupError):
        while True:  # until it is reaped
            os.kill(pid, 0)
            time.sleep(0.01)


@pytest.fixture
def handlers(monkeypatch):
    """As they were before; and nobody has asked to stop."""
    monkeypatch.setattr(mpi_restart, "stop", mpi_restart.Stop())
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    old = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in old.items():
        signal.signal(number, handler)


def started(monkeypatch, tmp_path, statuses, told=None):
    """`told` is the start during which a signal comes."""
    calls = []

    def run_once(command, run_dir):
        calls.append(command)
        if len(calls) == told:
            os.kill(os.getpid(), signal.SIGUSR1)
        return statuses[len(calls) - 1], []

    monkeypatch.setattr(mpi_restart, "run_once", run_once)
    words = ["mpi_restart.py", "-n", "3", "--restarts", "2", "--pause", "0"]
    monkeypatch.setattr(sys, "argv", [*words, "jaxrl-hpc", "train", "x", f"--run-dir={tmp_path}"])
    return mpi_restart.main(), calls


@pytest.mark.parametrize(
    "statuses, number", [([0], 1), ([75], 1), ([2], 1), ([9, 0], 2), ([137, 76, 75], 3), ([9, 9, 9], 3)]
)
@pytest.mark.usefixtures("handlers")
def test_when_it_starts_again(monkeypatch, tmp_path, statuses, number):
    status, calls = started(monkeypatch, tmp_path, statuses)
    assert status == statuses[-1] and len(calls) == number
    assert all(call[1:3] == ["-n", "3"] and call[-1] == "--resume" for call in calls)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("told, statuses, status", [(1, [9, 0], 75), (2, [9, 137, 0], 75), (1, [0], 0)])
def test_who_is_told_to_stop_does_not_start_again(monkeypatch, tmp_path, told, statuses, status):
    """Also where the job broke before its ranks could listen."""
    found, calls = started(monkeypatch, tmp_path, statuses, told)
    assert found == status and len(calls) == told


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    "words, said",
    [
        (["jaxrl-hpc", "train", "x"], "give the run a --run-dir"),
        (["--restarts", "-1", "jaxrl-hpc", "train", "x", "--run-dir", "r"], "--restarts and --pause"),
        (["--pause", "nan", "jaxrl-hpc", "train", "x", "--run-dir", "r"], "--restarts and --pause"),
        (["--launcher", "srun 'x", "jaxrl-hpc", "--run-dir", "r"], "--launcher: No closing quotation"),
        (["--launcher", "no-such-launcher -n 2", "jaxrl-hpc", "--run-dir", "r"], "no-such-launcher: No such"),
    ],
)
def test_mistakes_are_one_sentence(monkeypatch, capsys, words, said):
    monkeypatch.setattr(sys, "argv", ["mpi_restart.py", *words])
    with pytest.raises(SystemExit) as end:
        mpi_restart.main()
    err = capsys.readouterr().err
    assert end.value.code == 2 and err.startswith("error: ") and said in err and err.count("\n") == 1
