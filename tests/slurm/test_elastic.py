"""An elastic run on a real Slurm: a learner's job, an array of actors, one of which is killed."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.holding import Hold
from tests.workflows import elastic_jobs
from tests.workflows.test_elastic import STEPS, data, progress

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.full, pytest.mark.timeout(3600)]


def elastic(environment, *arguments):
    command = [sys.executable, "-m", "jaxrl_hpc.cli.main", "elastic", *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    return done.returncode, done.stdout + done.stderr


def jobs(text):
    return re.findall(r"as job (\d+)", text)


def numbers(folder, array):
    """(element of the array, number that it was given) of the actors that say that they have joined."""
    texts = {path.stem.partition("-")[2]: path.read_text() for path in folder.glob(f"actor-{array}_*.log")}
    found = {element: re.search(r"^actor (\d+) of", text, re.M) for element, text in texts.items()}
    return [(element, match[1]) for element, match in sorted(found.items()) if match]


def test_a_learner_and_an_array_of_actors(cluster, tmp_path):
    pytest.importorskip("zmq")
    config, run = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(data(total_env_steps=600 * STEPS, checkpoint_seconds=0.001)))
    hold = Hold(tmp_path / "hold", env_steps=100 * STEPS)
    environment = cluster.environment | hold.environment
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    wanted = [config, "--run-dir", run, "--actors", "3", "--actor-slurm", "at_once=2"]
    wanted += ["--slurm", f"setup=[cd {ROOT}]"]

    code, text = elastic(environment, "submit", *wanted, "--dry-run")
    assert code == 0 and "#SBATCH --array=0-2%2" in text and not (tmp_path / "run.slurm").exists()
    code, text = elastic(environment, "submit", *wanted)
    assert code == 0, text
    learner, actors = jobs(text)

    def logs():
        return "\n".join(path.read_text() for path in (tmp_path / "run.slurm").glob("*.log"))

    cluster.until("the learner is held", lambda: progress(run) >= 100 * STEPS, explain=logs)
    code, text = elastic(environment, "submit", *wanted)
    assert code == 2 and "already in the queue as job" in text and "elastic add" in text
    # who sent the unrolls; the other one may have come too late to be admitted before the learner was held
    cluster.until("an actor says its number", lambda: numbers(tmp_path / "run.slurm", actors), explain=logs)
    killed, number = numbers(tmp_path / "run.slurm", actors)[0]
    joined = re.search(rf"actor {number} \(process (\d+) on", logs())
    os.kill(int(joined[1]), signal.SIGKILL)  # scancel would ask it to stop
    cluster.until("it is dead", lambda: cluster.states(killed) != ["RUNNING"], explain=logs)
    code, text = elastic(environment, "add", run, "--actors", "1", "--slurm", f"setup=[cd {ROOT}]")
    assert code == 0, text
    (more,) = jobs(text)
    hold.release()
    assert cluster.wait_for(learner) == ["COMPLETED"], logs()
    for job in {f"{actors}_{element}" for element in range(3)} - {killed} | {more}:
        assert set(cluster.wait_for(job)) == {"COMPLETED"}, logs()
    assert cluster.wait_for(killed) != ["COMPLETED"]
    summary = elastic_jobs.accounts(run, STEPS)
    assert summary["lost_actors"] == 1 and summary["learned_unrolls"] == 600
    assert 2 <= summary["joined_actors"] <= 4


TOO_MANY = ["--dry-run", "--actors", str(10**12), "--actor-slurm", "at_once=4"]


def test_what_is_refused(tmp_path):
    for arguments, text in (
        (
            ["submit", "cartpole_ppo", "--run-dir", tmp_path / "a"],
            "actors cannot come and go in workflow 'fused'",
        ),
        (["add", tmp_path / "none"], "there is no run directory"),
        (
            ["submit", "workflows/cartpole_impala_elastic", "--run-dir", f"{tmp_path}\nx"],
            "--run-dir: should have no line breaks",
        ),
        (
            ["submit", "workflows/cartpole_impala_elastic", "--run-dir", tmp_path, "--actors", "99"],
            "at most workflow.actors=16",
        ),
        (
            ["submit", "workflows/cartpole_impala_elastic", "--run-dir", tmp_path / "b", *TOO_MANY],
            "--actors: should be from 1 to 4,000,000 (it is 1,000,000,000,000)",
        ),
        (
            ["submit", "workflows/cartpole_impala_elastic", "--run-dir", tmp_path, "--slurm", "tme=3"],
            "--slurm.tme: unknown key",
        ),
        (["submit", "workflows/cartpole_impala_elastic", "--run-dir", tmp_path, "--slurm", "x"], "key=value"),
    ):
        code, said = elastic(os.environ, *arguments)
        assert code == 2 and text in said and len(said.splitlines()) == 1, said


def test_texts_stay_texts():
    from jaxrl_hpc.sweeps.elastic import slurm_config

    found = slurm_config(["time=1:00:00", "mem=8G", "cpus_per_task=2", "options=[--qos=long]"], "--slurm")
    assert (found.time, found.mem, found.cpus_per_task, found.options) == (
        "1:00:00",
        "8G",
        2,
        ("--qos=long",),
    )


def test_what_the_scripts_say(tmp_path, monkeypatch):
    from jaxrl_hpc.sweeps.elastic import ElasticJobs, slurm_config

    config = slurm_config([], "--slurm")
    jobs = ElasticJobs(Path("/r/e"), "/c.yaml", ["run.seed=3"], 4, 60.0, config, config, False)
    learner, actors = jobs.scripts().values()
    assert "train /c.yaml run.seed=3 --run-dir /r/e --resume &" in learner and "--array" not in learner
    assert "actor /r/e --wait 60 &" in actors and "#SBATCH --array=0-3\n" in actors
    for text in (learner, actors):
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert json.dumps(list(jobs._replace(config="").scripts())) == '["actors.sh"]'
    monkeypatch.chdir(tmp_path)
    here = jobs._replace(run_dir=Path("."))
    assert here.folder == tmp_path.with_name(f"{tmp_path.name}.slurm")
    assert f"--job-name={tmp_path.name}\n" in here.scripts()["learner.sh"]
