"""Job scripts on a real Slurm: arrays, kills, preemption, requeueing, MPI ranks."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml

from jaxrl_hpc.cli import doctor_mpi
from jaxrl_hpc.metrics.parquet import read_metrics, without_clock
from jaxrl_hpc.sweeps.directory import SweepDirectory
from jaxrl_hpc.sweeps.plan import make_plan
from jaxrl_hpc.sweeps.spec import load_spec
from tests import small
from tests.holding import Hold
from tests.sweeps import made_sweeps

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = ROOT / "scripts" / "slurm"
# saved after every chunk; runs that something happens to are held after their first save
LONG = {"total_env_steps": 24_000, "log_every": 800, "eval_every": 8_000, "checkpoint_seconds": 0.001}
LONG |= {"tensorboard": False, "eval_episodes": 2, "final_eval_episodes": 4}
SHORTER = LONG | {"total_env_steps": 8_000, "eval_every": 4_000}

pytestmark = pytest.mark.timeout(3600)


@pytest.fixture(scope="module", autouse=True)
def _programs(cluster):
    """Templates find jaxrl-hpc, python and mpiexec where this interpreter is."""
    cluster.environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "long.yaml"
    path.write_text(yaml.safe_dump(small.data(run=LONG)))
    return path


@pytest.fixture(scope="module")
def unbroken(cluster, config, tmp_path_factory):
    """The run that every interrupted one must equal: made by the simplest template."""
    folder = tmp_path_factory.mktemp("unbroken")
    job = template(cluster, folder, "train", str(config), "--run-dir", str(folder / "run"))
    assert cluster.wait_for(job) == ["COMPLETED"], cluster.logs(job)
    return folder / "run"


def template(cluster, folder, name, *arguments, options=(), **environment):
    """Submit one of scripts/slurm/ with its log in `folder`."""
    folder.mkdir(exist_ok=True)
    fixed = [f"--chdir={ROOT}", f"--output={folder}/%A_%a.log", "--cpus-per-task=1"]
    return cluster.submit(*fixed, *options, str(TEMPLATES / f"{name}.sbatch"), *arguments, **environment)


@pytest.fixture
def hold(tmp_path):
    """Runs that get its environment save once and wait: for a signal, or until they are released."""
    return Hold(tmp_path / "hold")


def saved(folder):
    return any(folder.rglob("*.manifest"))


def until_saved(cluster, job, folder):
    """The job is in the middle of training: a checkpoint is there, and no result."""
    cluster.until(f"job {job} has saved once", lambda: saved(folder), explain=lambda: cluster.logs(job))
    assert cluster.states(job) == ["RUNNING"]


def until_requeued(cluster, job):
    cluster.until(
        f"job {job} is back in the queue",
        lambda: cluster.show(job)["Restarts"] == "1",
        explain=lambda: cluster.logs(job),
    )


def assert_same_run(first, second, env_steps=LONG["total_env_steps"]):
    one, other = (json.loads((folder / "summary.json").read_text()) for folder in (first, second))
    assert one["params_sha256"] == other["params_sha256"]
    assert one["env_steps"] == other["env_steps"] == env_steps
    rows = [str(without_clock(read_metrics(folder)).to_pylist()) for folder in (first, second)]
    assert rows[0] == rows[1]


@pytest.mark.full
def test_time_is_nearly_up_the_run_saves_and_comes_back(cluster, config, unbroken, hold, tmp_path):
    """The signal of --signal=B:USR1@…: here sent by hand, since Slurm's clock counts in minutes."""
    arguments = [str(config), "--run-dir", str(tmp_path / "run")]
    job = template(cluster, tmp_path, "requeue", *arguments, **hold.environment)
    until_saved(cluster, job, tmp_path / "run")
    cluster.ask("scancel", "--batch", "--signal=USR1", job)
    until_requeued(cluster, job)
    hold.release()
    assert cluster.wait_for(job) == ["COMPLETED"], cluster.logs(job)
    assert cluster.show(job)["Restarts"] == "1"
    log = cluster.logs(job)
    assert "SIGUSR1: saved at" in log and "resumed at" in log
    assert_same_run(tmp_path / "run", unbroken)


@pytest.mark.full
def test_preempted_by_a_job_of_higher_priority(cluster, config, unbroken, hold, tmp_path):
    """Slurm itself takes the node away and puts the job back into the queue."""
    arguments = [str(config), "--run-dir", str(tmp_path / "run")]
    job = template(cluster, tmp_path, "requeue", *arguments, options=["--exclusive"], **hold.environment)
    until_saved(cluster, job, tmp_path / "run")
    urgent = cluster.submit(
        "--partition=urgent", "--exclusive", f"--output={tmp_path}/urgent.log", "--wrap=true"
    )
    assert cluster.wait_for(urgent) == ["COMPLETED"]
    assert not (tmp_path / "run" / "summary.json").exists()
    until_requeued(cluster, job)
    hold.release()
    assert cluster.wait_for(job) == ["COMPLETED"], cluster.logs(job)
    assert cluster.show(job)["Restarts"] == "1"
    assert "DUE TO PREEMPTION" in cluster.logs(job) and "resumed at" in cluster.logs(job)
    assert_same_run(tmp_path / "run", unbroken)


@pytest.mark.full
def test_a_cancelled_job_stays_cancelled(cluster, config, hold, tmp_path):
    arguments = [str(config), "--run-dir", str(tmp_path / "run")]
    job = template(cluster, tmp_path, "requeue", *arguments, **hold.environment)
    until_saved(cluster, job, tmp_path / "run")
    cluster.ask("scancel", job)
    assert cluster.wait_for(job) == ["CANCELLED"]
    cluster.until("its processes are gone", lambda: not any(map(psutil.pid_exists, holder(tmp_path / "run"))))
    assert cluster.states(job) == ["CANCELLED"]


def holder(folder):
    """Processes that hold a run or a task."""
    texts = [path.read_text() for path in folder.rglob("run.lock")]
    return [json.loads(text)["pid"] for text in texts if text]


def sweep(cluster, *arguments, **environment):
    command = [sys.executable, "-m", "jaxrl_hpc.cli.main", "sweep", *map(str, arguments)]
    done = subprocess.run(
        command, env=cluster.environment | environment, capture_output=True, text=True, cwd=ROOT
    )
    return done.returncode, done.stdout + done.stderr


def test_submit_end_to_end(cluster, hold, tmp_path):
    """An array of several tasks; one is killed, is put back into the queue and continues exactly."""
    axes = {"agent.learning_rate": [1e-3, 1e-2], "agent.n_step": [1, 2]}
    slurm = {"cpus_per_task": 1, "at_once": 2, "modules": ["nothing"], "options": ["--comment=tests"]}
    slurm["setup"] = [f"cd {ROOT}"]
    file = made_sweeps.write(tmp_path, run=SHORTER, axes=axes, slurm=slurm)
    whole, broken = SweepDirectory(tmp_path / "whole"), SweepDirectory(tmp_path / "broken")
    code, text = sweep(cluster, "submit", file, "--dir", broken.path, "--dry-run")
    assert code == 0 and "#SBATCH --array=0-1%2" in text and not broken.path.exists()
    jobs = {}
    for directory, environment in ((whole, {}), (broken, hold.environment)):
        code, text = sweep(cluster, "submit", file, "--dir", directory.path, **environment)
        assert code == 0, text
        jobs[directory] = text.partition("job ")[2].partition(";")[0]
    job = jobs[broken]
    code, text = sweep(cluster, "submit", file, "--dir", broken.path)
    assert code == 2 and f"already in the queue as job {job}" in text

    plan = make_plan(load_spec(file))
    task = broken.task(plan.tasks[1])
    cluster.until("the second task has saved", lambda: saved(task), explain=lambda: cluster.logs(job))
    (pid,) = set(holder(task))  # of the task and of the run in it
    os.kill(pid, signal.SIGKILL)
    element = f"{job}_1"
    assert cluster.wait_for(element) == ["FAILED"]
    assert all(broken.result(trial.id) is None for trial in plan.tasks[1].trials)
    hold.release()
    cluster.ask("scontrol", "requeue", element)
    for job in jobs.values():
        assert cluster.wait_for(job) == ["COMPLETED"] * 2, cluster.logs(job)
    logs = [path.read_text() for path in broken.slurm.glob("*_1.log")]
    assert "resumed at" in "".join(logs)
    for trial in plan.trials:
        assert_same_run(broken.trials / trial.id, whole.trials / trial.id, SHORTER["total_env_steps"])
        assert broken.result(trial.id)["status"] == "finished"
    code, text = sweep(cluster, "submit", file, "--dir", broken.path)
    assert code == 0 and "nothing left to do" in text
    code, text = sweep(cluster, "status", broken.path)
    assert code == 0 and "4 of 4 trials done" in text


@pytest.mark.full
def test_halving_is_one_array_per_rung(cluster, tmp_path):
    axes = {"agent.learning_rate": [1e-3, 3e-3, 1e-2, 1e38], "agent.n_step": [1, 2]}
    file = made_sweeps.write(tmp_path, axes=axes, halving={"rungs": 2, "factor": 4})
    directory = SweepDirectory(tmp_path / "sweep")
    code, text = sweep(cluster, "submit", file, "--dir", directory.path)
    assert code == 0, text
    first, second = text.partition("job ")[2].partition(";")[0].split(", ")
    assert cluster.wait_for(second) == ["COMPLETED"] * 2, cluster.logs(second)
    assert cluster.states(first) == ["COMPLETED"] * 2
    plan = make_plan(load_spec(file))
    states = [directory.result(trial.id)["status"] for trial in plan.trials]
    assert sorted(states) == ["diverged"] * 2 + ["finished"] * 2 + ["stopped"] * 4


@pytest.mark.full
def test_array_template(cluster, tmp_path):
    file = made_sweeps.write(tmp_path, axes={"agent.n_step": [1, 2]})
    directory = SweepDirectory(tmp_path / "sweep")
    job = template(
        cluster, tmp_path, "array", str(file), "--dir", str(directory.path), options=["--array=0-1"]
    )
    assert cluster.wait_for(job) == ["COMPLETED"] * 2, cluster.logs(job)
    plan = make_plan(load_spec(file))
    assert [directory.result(trial.id)["status"] for trial in plan.trials] == ["finished"] * 2


@pytest.mark.mpi
def test_mpi_template_without_a_config_tests_two_ranks(cluster, tmp_path):
    pytest.importorskip("mpi4jax")
    job = template(cluster, tmp_path, "mpi", options=["--ntasks-per-node=2"])
    assert cluster.wait_for(job) == ["COMPLETED"], cluster.logs(job)
    steps = doctor_mpi.parse(cluster.logs(job))
    assert [step["step"] for step in steps[:3]] == ["ranks", "allreduce", "window"]
    assert [step["step"] for step in steps[3:]] == ["connect", "devices", "sum", "flags"]
    assert all(step["ok"] for step in steps) and steps[0]["text"].startswith("2 ranks")
    assert "found by MPI" in steps[3]["text"]


@pytest.mark.full
def test_without_mpi_slurm_says_who_is_there(cluster, tmp_path):
    """Two steps of one job at the same time: each finds its own processes, tests itself and trains."""
    settings = ["workflow.shards=2", "workflow.num_envs=8", "workflow.unroll_length=32", "run.eval_every=0"]
    settings += ["run.total_env_steps=1_024", "run.final_eval_episodes=2", "run.tensorboard=false"]
    train = ["jaxrl-hpc", "train", "workflows/cartpole_ppo_sharded", *settings, "--run-dir"]
    script = tmp_path / "steps.sh"
    steps = [f"srun --mpi=none --overlap -K1 -n 2 {' '.join(train)} {tmp_path}/{name} &" for name in "ab"]
    script.write_text("\n".join(["#!/bin/bash", *steps, "wait -n && wait -n", ""]))
    options = ["--ntasks=4", "--cpus-per-task=1", f"--chdir={ROOT}", f"--output={tmp_path}/steps.log"]
    job = cluster.submit(*options, str(script))
    test = template(cluster, tmp_path, "mpi", options=["--ntasks-per-node=2"], MPI_KIND="none")
    for each in (job, test):
        assert cluster.wait_for(each) == ["COMPLETED"], cluster.logs(each)
    hashes = set()
    for name in "ab":
        assert yaml.safe_load((tmp_path / name / "config.yaml").read_text())["workflow"]["engine"] == "jax"
        assert len(list((tmp_path / name / "ranks").glob("?.json"))) == 2
        hashes.add(json.loads((tmp_path / name / "summary.json").read_text())["params_sha256"])
    assert len(hashes) == 1
    found = doctor_mpi.parse(cluster.logs(test))
    assert [step["step"] for step in found] == ["connect", "devices", "sum", "flags"]
    assert "found by TCP alone" in found[0]["text"] and "srun -K1 -n 2 jaxrl-hpc" in found[3]["text"]


@pytest.mark.full
@pytest.mark.mpi
def test_ranks_save_come_back_and_end_with_the_same_bits(cluster, hold, tmp_path):
    """Two ranks of one run under srun: the signal reaches all of them, and all of them continue."""
    pytest.importorskip("mpi4jax")
    settings = ["workflow.shards=2", "workflow.num_envs=8", "workflow.unroll_length=32", "run.eval_every=0"]
    settings += ["run.total_env_steps=12_288", "run.log_every=512", "run.checkpoint_seconds=0.001"]
    settings += ["run.final_eval_episodes=4", "run.tensorboard=false"]
    summaries = []
    for name in ("whole", "broken"):
        folder = tmp_path / name
        arguments = ["workflows/cartpole_ppo_sharded", *settings, "--run-dir", str(folder / "run")]
        environment = hold.environment if name == "broken" else {}
        job = template(cluster, folder, "mpi", *arguments, options=["--ntasks-per-node=2"], **environment)
        if name == "broken":
            until_saved(cluster, job, folder / "run")
            cluster.ask("scancel", "--batch", "--signal=USR1", job)
            until_requeued(cluster, job)
            hold.release()
        assert cluster.wait_for(job) == ["COMPLETED"], cluster.logs(job)
        assert cluster.show(job)["Restarts"] == ("1" if name == "broken" else "0"), cluster.logs(job)
        summaries.append(json.loads((folder / "run" / "summary.json").read_text()))
    assert "SIGUSR1 on rank" in cluster.logs(job) and "resumed at" in cluster.logs(job)
    assert summaries[0]["params_sha256"] == summaries[1]["params_sha256"]
