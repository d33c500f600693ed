"""Job scripts as text: what `submit` writes and what the templates have in common. Needs no Slurm."""

import subprocess
from pathlib import Path

import pytest

from jaxrl_hpc.sweeps import slurm
from jaxrl_hpc.sweeps.directory import SweepDirectory
from tests.sweeps.made_sweeps import plan_of, write

TEMPLATES = sorted((Path(__file__).resolve().parents[2] / "scripts" / "slurm").glob("*.sbatch"))


def script(folder, tasks=(0,), **settings):
    plan = plan_of(write(folder, axes={"agent.n_step": [1, 2]}, slurm=settings))
    directory = SweepDirectory(folder / "with space")
    return slurm.script(plan, directory.freeze(plan), directory, tasks)


@pytest.mark.parametrize(
    ("indices", "text"), [([0], "0"), ([0, 1, 2], "0-2"), ([5, 0, 1, 7, 8], "0-1,5,7-8"), ([], "")]
)
def test_ranges(indices, text):
    assert slurm.ranges(indices) == text


def test_everything_that_was_asked_for_is_in_the_script(tmp_path):
    settings = {
        "partition": "gpu",
        "account": "abc",
        "time": "1-00",
        "cpus_per_task": 8,
        "mem": "16G",
        "at_once": 3,
    }
    settings |= {"options": ["--qos=long"], "modules": ["python/3.11"], "setup": ["source env/bin/activate"]}
    text = script(tmp_path, (0, 1, 4), signal_seconds=120, **settings)
    wanted = [
        "--partition=gpu",
        "--account=abc",
        "--time=1-00",
        "--cpus-per-task=8",
        "--mem=16G",
        "--qos=long",
    ]
    for line in (*wanted, "--array=0-1,4%3", "--signal=B:USR1@120", "--requeue"):
        assert f"#SBATCH {line}\n" in text
    assert (
        text.index("module load python/3.11")
        < text.index("source env/bin/activate")
        < text.index("sweep run")
    )
    assert slurm.WAIT_AND_REQUEUE.rstrip() in text and '--task "$SLURM_ARRAY_TASK_ID"' in text
    assert "None" not in text


def test_without_requeue_nothing_comes_back(tmp_path):
    text = script(tmp_path, requeue=False)
    assert "#SBATCH --no-requeue\n" in text and "scontrol" not in text and "--signal" not in text


@pytest.mark.parametrize("requeue", [True, False])
def test_the_script_is_a_shell_script(tmp_path, requeue):
    path = tmp_path / "array.sh"
    path.write_text(script(tmp_path, requeue=requeue))
    subprocess.run(["bash", "-n", str(path)], check=True)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.stem)
def test_templates(path):
    text = path.read_text()
    subprocess.run(["bash", "-n", str(path)], check=True)
    assert f"scripts/slurm/{path.name}" in text  # says how to use it
    if "--requeue" in text:
        assert text.endswith(slurm.WAIT_AND_REQUEUE)


def test_there_are_templates():
    assert {p.stem for p in TEMPLATES} == {"train", "requeue", "array", "mpi"}
