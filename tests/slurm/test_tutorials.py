"""Slurm blocks of the tutorials, submitted as they are: jobs of this machine's single node, small budgets."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_tutorials import ROOT, TUTORIALS, blocks

FENCED = re.compile(r"^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
# what one node of four cores and a test can do
SMALLER = {
    "--nodes=2 --ntasks-per-node=3 scripts/slurm/mpi.sbatch workflows/cartpole_ppo_sharded": (
        "--nodes=1 --ntasks-per-node=3 scripts/slurm/mpi.sbatch workflows/cartpole_ppo_sharded "
        "run.total_env_steps=24_000 run.eval_every=0 run.final_eval_episodes=4"
    )
}
SUBMITTED = re.compile(r"(?:Submitted batch|submitted as) job (\d+)")


def submissions(page: Path) -> list[str]:
    shown = [m["text"] for m in FENCED.finditer(page.read_text()) if not m["kind"]]
    return [text for text in shown if re.search(r"sbatch|submit", text)]


PAGES = [page for page in TUTORIALS if submissions(page)]


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_jobs_of_a_tutorial(cluster, page: Path, tmp_path: Path) -> None:
    """Each command is accepted, each job completes."""
    if "mpi.sbatch" in page.read_text():
        pytest.importorskip("mpi4jax")
    shutil.copytree(ROOT / "scripts" / "slurm", tmp_path / "scripts" / "slurm")
    for file, _, text in blocks(page):
        if file is not None:
            (tmp_path / file).write_text(text)
    environment = cluster.environment | {
        "PATH": f"{Path(sys.executable).parent}:{cluster.environment['PATH']}"
    }
    for text in submissions(page):
        for shown, smaller in SMALLER.items():
            text = text.replace(shown, smaller)
        for command in text.splitlines():
            done = subprocess.run(
                ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            for job in SUBMITTED.findall(done.stdout):
                states = set(cluster.wait_for(job))
                assert states == {"COMPLETED"}, f"{command}: {states}\n{cluster.logs(job)}"


def test_tutorials_submit_jobs() -> None:
    assert {page.stem for page in PAGES} == {"your_simulator", "laptop_to_cluster"}
    text = "".join(text for page in PAGES for text in submissions(page))
    assert all(shown in text for shown in SMALLER)
