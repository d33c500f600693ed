"""Files that start jobs are run early, each with others behind it; no test is lost, no file torn apart."""

from types import SimpleNamespace

from tests import tiers


def test_jobs_first():
    files = [f"tests/a/test_{i}.py" for i in range(9)]
    files[5:5] = ["tests/mpi/test_a.py", "tests/slurm/test_b.py"]
    items = [SimpleNamespace(nodeid=f"{name}::test_{i}") for name in files for i in range(2)]
    ordered = tiers.jobs_first(items)
    assert sorted(item.nodeid for item in ordered) == sorted(item.nodeid for item in items)
    places = list(dict.fromkeys(item.nodeid.partition("::")[0] for item in ordered))
    assert [item.nodeid.partition("::")[0] for item in ordered] == [name for name in places for _ in range(2)]
    assert [places.index(name) for name in ("tests/mpi/test_a.py", "tests/slurm/test_b.py")] == [0, 4]
    assert tiers.jobs_first(items[:4]) == items[:4]
