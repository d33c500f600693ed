"""One run on every layout: the same bits when deterministic, the same within rounding otherwise."""

import numpy as np
import pytest
from scipy import stats

from tests.mpi import cases, launch

pytestmark = [pytest.mark.mpi, launch.needs_mpi]
LAYOUTS = {"4 devices": (1, 4), "2 ranks": (2, 0), "4 ranks": (4, 0), "2 ranks × 2 devices": (2, 2)}


def run(layout, *names):
    ranks, devices = layout
    status, output = launch.run(ranks, "-m", "tests.mpi.cases", "train", str(devices), *names)
    assert status == 0, output
    return {result["case"]: result for result in launch.results(output)}


@pytest.fixture(scope="module")
def one_device():
    return run((1, 0), "ppo", "dqn", "ppo-fast", "dqn-fast")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_deterministic_runs_have_the_same_bits(one_device, layout):
    found = run(LAYOUTS[layout], "ppo", "dqn")
    for case, result in found.items():
        assert result["params"] == one_device[case]["params"], case
        assert result["metrics"] == one_device[case]["metrics"], case
        assert result["place"] != one_device[case]["place"]


@pytest.mark.parametrize("layout", ["2 ranks"])
def test_fast_runs_agree_within_rounding(one_device, layout):
    for case, result in run(LAYOUTS[layout], "ppo-fast", "dqn-fast").items():
        expected = one_device[case]["metrics"]
        assert result["metrics"]["episodes"] == expected["episodes"] > 0
        assert result["metrics"]["episode_return"] == expected["episode_return"]
        for name, value in result["metrics"].items():
            np.testing.assert_allclose(value, expected[name], rtol=2e-3, atol=1e-5, err_msg=f"{case} {name}")


def test_fast_and_deterministic_runs_are_the_same_run(one_device):
    for case in ("ppo", "dqn"):
        exact, fast = (one_device[name]["metrics"] for name in (case, f"{case}-fast"))
        assert exact["episodes"] == fast["episodes"]
        np.testing.assert_allclose(exact["loss"], fast["loss"], rtol=2e-3)


def test_all_shards_together_sample_the_exact_distribution():
    """Chi-square against the priorities, over ranks and devices at once; all see the same draws."""
    status, output = launch.run(2, "-m", "tests.mpi.cases", "sampling", "0")
    assert status == 0, output
    first, second = (np.array(result["counts"]) for result in launch.results(output))
    np.testing.assert_array_equal(first, second)
    mass = cases.priorities().astype(np.float64).reshape(-1)
    expected = mass / mass.sum() * first.sum()
    assert first.sum() == 400 * 12 * 8 and expected.min() > 10
    assert stats.chisquare(first, expected).pvalue > 1e-4
    uniform_over_shards = np.repeat(mass.reshape(12, 32).sum(1) / mass.sum(), 32)
    assert uniform_over_shards.std() > 0, "shards differ in mass, so that the first level matters"


def test_a_learner_that_drifts_apart_is_found_and_named():
    status, output = launch.run(3, "-m", "tests.mpi.cases", "drift", "0")
    assert status == 0, output
    errors = {result["rank"]: result["error"] for result in launch.results(output)}
    assert sorted(errors) == [0, 1, 2]
    for error in errors.values():  # all ranks know, and none goes on
        assert "drifted apart: rank 2 device 0 not as rank 0" in error
