"""A parallel program as an environment: the example's rod is the equation's, and a policy learns to heat."""

import json

import numpy as np
import pytest

from tests.mpi import launch

pytestmark = [pytest.mark.mpi, launch.needs_mpi, pytest.mark.timeout(3600)]
FOLDER = launch.ROOT / "docs" / "examples" / "heat"
ROD = """
import numpy as np
from mpi4py import MPI
from heat import Heat
from tests.telling import tell

rod = Heat(MPI.COMM_WORLD.Dup(), cells=24)
rows = [rod.reset(5).tolist()]
for action in np.sin(np.arange(12)):
    obs, reward, _ = rod.step(np.array([action], np.float32))
    rows.append([*obs.tolist(), reward])
rod.close()
if MPI.COMM_WORLD.Get_rank() == 0:
    tell({"rows": rows})
"""


def in_numpy():
    """The rod's equation by explicit steps on one array."""
    rng = np.random.default_rng(5)
    room, wanted = rng.uniform(-0.5, 0.5), rng.uniform(-0.3, 0.3)
    u = np.full(24, room)
    places = [int((s + 0.5) * 24 / 8) for s in range(8)]
    rows = [[*u[places], wanted, room]]
    for action in np.sin(np.arange(12)).astype(np.float32):
        for _ in range(24 * 24 // 50):
            padded = np.concatenate([[action], u, [room]])
            u = u + 0.4 * (padded[:-2] - 2 * u + padded[2:])
        rows.append([*u[places], wanted, room, -abs(u[places][3:5].mean() - wanted)])
    return rows


def test_the_rod_is_the_equations_though_it_is_divided(tmp_path):
    (tmp_path / "rod.py").write_text(ROD)
    path = f"{FOLDER}:{launch.ROOT}"
    status, output = launch.run(3, str(tmp_path / "rod.py"), PYTHONPATH=path)
    assert status == 0, output
    (result,) = launch.results(output)
    for found, expected in zip(result["rows"], in_numpy(), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.full
def test_trained_under_mpirun(tmp_path):
    """One rank that learns, two groups of one rank; a heater that stays off is 0.2 away on average (-12)."""
    settings = ["run.total_env_steps=19_200", "env.ranks_per_copy=1", "run.log_every=4_800"]
    words = ["-m", "jaxrl_hpc.cli.main", "train", str(FOLDER / "heat_ppo.yaml"), *settings]
    path = f"{FOLDER}:{launch.ROOT}"
    status, output = launch.run(3, *words, "--run-dir", str(tmp_path / "run"), PYTHONPATH=path)
    assert status == 0, output
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["env"] == "heat:Heat" and summary["eval_return_score"] > -6, output
    refused, output = launch.run(1, *words, "--run-dir", str(tmp_path / "alone"), PYTHONPATH=path)
    assert refused == 2 and "mpi_program needs ranks beside the one that learns" in output


@pytest.mark.slow
def test_a_program_that_raises_ends_the_job_with_a_sentence(tmp_path):
    (tmp_path / "leaky.py").write_text(
        "from heat import Heat\n"
        "class Leaky(Heat):\n"
        "    def step(self, action):\n"
        "        raise RuntimeError('the rod leaks')\n"
    )
    words = ["-m", "jaxrl_hpc.cli.main", "train", str(FOLDER / "heat_ppo.yaml"), "env.program=leaky:Leaky"]
    path = f"{tmp_path}:{FOLDER}:{launch.ROOT}"
    status, output = launch.run(3, *words, "--run-dir", str(tmp_path / "run"), PYTHONPATH=path)
    assert status == 2, output
    assert "env 'leaky:Leaky': copies 0, 1, 2, 3, 4, 5, 6, 7 raised RuntimeError: the rod leaks" in output
    assert "on rank 1" in output and "on rank 2" in output and "(step 1, rank 0)" in output
