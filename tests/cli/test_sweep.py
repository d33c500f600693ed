"""`jaxrl-hpc sweep` as a user meets it: here, in job arrays of other kinds, in a plain shell."""

import json
import os
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest

from jaxrl_hpc.cli.main import main
from jaxrl_hpc.cli.sweep import array_index
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.sweeps import local
from jaxrl_hpc.sweeps.directory import SweepDirectory
from tests.holding import Hold
from tests.report.browser import PROGRAM, Browser
from tests.sweeps.made_sweeps import plan_of, write

AXES = {"agent.n_step": [1, 2], "agent.learning_rate": [1e-3, 1e38]}
COMMAND = [sys.executable, "-m", "jaxrl_hpc.cli.main", "sweep"]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A sweep of two tasks, each started by another kind of job array, one more time from a shell."""
    folder = tmp_path_factory.mktemp("cli")
    file, directory = write(folder, axes=AXES), SweepDirectory(folder / "sweep")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "PBS_"))}
    command = [*COMMAND, "run", str(file), "--dir", str(directory.path)]
    subprocess.run(command, env=clean | {"PBS_ARRAY_INDEX": "1"}, check=True, capture_output=True)
    plan = plan_of(file)
    first = [[directory.result(t.id) is not None for t in task.trials] for task in plan.tasks]
    shell = f"seq 0 1 | xargs -P 2 -I{{}} {' '.join(command)} --task {{}}"
    text = subprocess.run(shell, shell=True, env=clean, check=True, capture_output=True, text=True).stdout
    return file, directory, plan, first, text


def test_array_variables_and_plain_shells(done):
    _, directory, plan, first, text = done
    assert first == [[False, False], [True, True]]
    assert text.count("all 2 trials have a result") == 2
    assert [directory.result(t.id)["status"] for t in plan.trials] == ["finished", "diverged"] * 2


def test_where_the_index_comes_from():
    assert array_index(None, {}) is None
    assert array_index(3, {"SLURM_ARRAY_TASK_ID": "5"}) == 3
    assert array_index(None, {"SLURM_ARRAY_TASK_ID": "5"}) == 5
    assert array_index(None, {"PBS_ARRAY_INDEX": "6"}) == 6
    assert array_index(None, {"PBS_ARRAYID": "7"}) == 7
    with pytest.raises(UserError, match="PBS_ARRAYID: should be the number of a task"):
        array_index(None, {"PBS_ARRAYID": "[]"})


def test_plan_status_collect_report(done, capsys, tmp_path):
    file, directory, plan, _, _ = done
    folder = str(directory.path)
    assert main(["sweep", "plan", str(file), "--dir", folder]) == 0
    out = capsys.readouterr().out
    assert "4 trials of 1.20k steps (4 combinations × 1 seed) in 2 tasks" in out
    assert "traced: side by side in one program" in out and "static: one program and task each" in out
    assert "1 diverged" in out
    assert main(["sweep", "plan", folder, "--json"]) == 0
    tasks = json.loads(capsys.readouterr().out)["tasks"]
    assert [[t["id"] for t in task["trials"]] for task in tasks] == [
        [t.id for t in k.trials] for k in plan.tasks
    ]
    assert main(["sweep", "status", folder]) == 0
    out = capsys.readouterr().out
    assert "4 of 4 trials done (2 finished, 2 diverged)" in out and "jaxrl-hpc train" in out
    assert main(["sweep", "status", folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"] == {"finished": 2, "diverged": 2}
    assert main(["sweep", "collect", folder, "--output", str(tmp_path / "t.parquet")]) == 0
    assert pq.read_table(tmp_path / "t.parquet").num_rows == 4
    assert main(["report", folder, "--output", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    body = page[page.index("<body>") : page.index('id="charts"')]
    for words in (
        "Best combinations",
        "Axis by axis",
        "Learning curves",
        "The best 2 of 2 combinations with a result",
        "Points: the 2 of 4 trials",
        "did not finish",
        "2 diverged",
    ):
        assert words in body
    assert main(["report", folder, folder]) == 2
    assert "is a sweep, which has a page of its own" in capsys.readouterr().err


@pytest.mark.skipif(PROGRAM is None, reason="no Chromium on the PATH: apt-get install chromium")
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_in_a_browser(done, tmp_path, width, capsys):
    """No error, no request, every chart drawn, nothing wider than the screen."""
    _, directory, _, _, _ = done
    path = tmp_path / "page.html"
    assert main(["report", str(directory.path), "--output", str(path)]) == 0
    with Browser() as page:
        page.resize(width, 900)
        page.open(path)
        drawn = page.evaluate(
            "[...document.querySelectorAll('.plot')].map(p => [p.id, "
            "p.querySelectorAll('circle, rect, .curve, .cross').length])"
        )
        assert {name.partition("-")[0] for name, _ in drawn} == {"slice", "pair", "curve"}
        assert all(count > 0 for _, count in drawn), drawn
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.problems == [] and page.requests == [path.resolve().as_uri()]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "nowhere"], "there is no sweep file 'nowhere'"),
        (["plan", "configs/cartpole_dqn.yaml"], "is a config to train, not a sweep"),
        (["run", "FILE", "--task", "9"], "there is no task 9: the sweep has tasks 0 to 1"),
        (["run", "FILE", "--jobs", "0"], "--jobs: should be at least 1"),
        (["run", "FILE", "agent.n_step=3"], "the sweep sets agent.n_step itself"),
        (["run", "FILE", "agent.gamma=0.5", "--dir", "DIR"], "agent.gamma was 0.99 and is 0.5"),
        (["status", "FILE", "agent.gama=1"], "agent.gama: unknown key; did you mean gamma?"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_exit_code_2(done, arguments, words, capsys):
    names = {"FILE": str(done[0]), "DIR": str(done[1].path)}
    assert main(["sweep", *(names.get(a, a) for a in arguments)]) == 2
    err = capsys.readouterr().err
    assert words in err and len(err.strip().splitlines()) == 1


def test_a_report_of_nothing(tmp_path, capsys):
    file = write(tmp_path, axes=AXES)
    SweepDirectory(tmp_path / "sweep").freeze(plan_of(file))
    assert main(["report", str(tmp_path / "sweep")]) == 2
    assert "no trial has finished yet" in capsys.readouterr().err


def test_cores_are_shared_out(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4, 5, 6, 7})
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    tasks = plan_of(write(tmp_path, axes={"agent.n_step": [1, 2, 3], "agent.gamma": [0.5, 0.9]})).tasks
    assert local.slots(tasks) == [[0, 1], [2, 3, 4], [5, 6, 7]]  # three tasks of two lanes
    assert local.slots(tasks, jobs=1) == [[0, 1, 2, 3, 4, 5, 6, 7]]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert local.slots(tasks) == [[0], [1]]  # a process per core, not devices of one process
    assert local.slots(tasks, jobs=3) == [[0], [1], [0]]


@pytest.mark.full
def test_run_all_here_stopped_and_started_again(tmp_path):
    """A task on each core; one signal to the parent stops all of them, and nothing is lost."""
    run = {"total_env_steps": 8_000, "log_every": 800, "eval_every": 0, "checkpoint_seconds": 0.001}
    file = write(tmp_path, axes={"agent.n_step": [1, 2]}, run=run)
    plan, directory = plan_of(file), SweepDirectory(tmp_path / "sweep")
    command = [*COMMAND, "run", str(file), "--dir", str(directory.path), "--jobs", "2"]
    hold = Hold(tmp_path / "hold")  # tasks save once and wait for the signal
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | hold.environment,
    )
    while not any(directory.tasks.rglob("*.manifest")):
        assert process.poll() is None, "a task has saved once"
        time.sleep(0.05)  # between looks
    process.send_signal(signal.SIGTERM)
    text = process.communicate()[0]
    assert process.returncode == 75, text
    assert "SIGTERM: saved at" in text and "the same command continues" in text
    assert any(directory.result(trial.id) is None for trial in plan.trials)
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert all(directory.result(trial.id)["status"] == "finished" for trial in plan.trials)


@pytest.mark.full
def test_a_task_that_fails_does_not_stop_the_others(tmp_path):
    file = write(tmp_path, axes={"workflow.num_envs": [4, 8]})
    plan, directory = plan_of(file), SweepDirectory(tmp_path / "sweep")
    blocked = directory.task(plan.tasks[0])
    blocked.mkdir(parents=True)
    (blocked / "work").write_text("in the way")
    command = [*COMMAND, "run", str(file), "--dir", str(directory.path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "task 0 failed with exit code" in done.stdout
    assert [directory.result(t.id) is not None for t in plan.trials] == [False, True]
