"""One run on every layout and both engines: the same bits when deterministic, within rounding otherwise.

Each layout is one job that does several things, because starting jobs is what takes time: it trains PPO from
the beginning, and goes on with a run of DQN with prioritised replay that the layout before it left behind.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from tests.mpi import cases, launch

pytestmark = [pytest.mark.mpi, launch.needs_mpi, pytest.mark.timeout(3600)]
STRETCHED = "stretched/"
JOBS = {  # ranks, devices, engine, tasks; in the order in which the stretched run goes on
    "4 ranks": (4, 0, "mpi", ["ppo", STRETCHED, "drift"]),
    "2 ranks": (2, 0, "mpi", ["ppo", STRETCHED, "ppo-fast", "dqn-fast", "sampling"]),
    "4 devices": (1, 4, "auto", ["ppo", STRETCHED]),
    "4 processes": (4, 1, "jax", ["ppo", STRETCHED]),
    "3 ranks": (3, 0, "mpi", [STRETCHED]),
    "2 processes × 2 devices": (2, 2, "auto", ["ppo", STRETCHED]),
}


def start(ranks, devices, tasks, folder, engine="auto"):
    placed = [f"{folder}/{task}" if task.endswith("/") else task for task in tasks]
    status, output = launch.run(ranks, "-m", "tests.mpi.cases", engine, str(devices), *placed)
    assert status == 0, output
    found = {}
    for result in launch.results(output):
        found.setdefault(result["what"].replace(f"{folder}/", ""), []).append(result)
    assert all(len(found[task]) == ranks * tasks.count(task) for task in tasks), output
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One rank, one device; the run that is stretched elsewhere goes on here in one process."""
    chunks = [STRETCHED] * len(JOBS)
    return start(1, 0, ["ppo", "ppo-fast", "dqn-fast", *chunks], tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """What each layout found."""
    folder = tmp_path_factory.mktemp("layouts")
    return {
        name: start(ranks, devices, tasks, folder, engine)
        for name, (ranks, devices, engine, tasks) in JOBS.items()
    }


@pytest.mark.full
@pytest.mark.parametrize("layout", [name for name, job in JOBS.items() if "ppo" in job[3]])
def test_ppo_has_the_same_bits(alone, jobs, layout):
    (expected,) = alone["ppo"]
    for result in jobs[layout]["ppo"]:
        assert result["params"] == expected["params"]
        assert result["metrics"] == expected["metrics"]
        assert result["place"] != expected["place"]
        assert result["processes"] == (JOBS[layout][0] if "processes" in layout else 1)


def test_two_ranks_have_the_bits_of_one_on_both_engines(tmp_path):
    """The quick tier's own jobs: the layouts of `jobs` take many minutes. Those of mpi4jax also sleep."""
    (expected,) = start(1, 0, ["ppo"], tmp_path)["ppo"]
    tasks = {"mpi": ["ppo", "ppo-slow"], "jax": ["ppo"]}
    for engine, processes in (("mpi", 1), ("jax", 2)):
        found = start(2, 0, tasks[engine], tmp_path, engine)
        for result in (result for task in tasks[engine] for result in found[task]):
            assert result["params"] == expected["params"] and result["metrics"] == expected["metrics"]
            assert result["place"] != expected["place"] and result["processes"] == processes
        for result in found.get("ppo-slow", []):  # 15 iterations of 8 steps and 2 epochs
            assert result["seconds"] >= 15 * (8 * cases.SLOW["step_seconds"] + cases.SLOW["update_seconds"])


AGENTS = ["one_copy", "lstm", "a2c", "td3", "recurrent", "ahead"]
MORE_AGENTS = ["rainbow", "dyna_q", "pqn", "iql", "crossq", "droq", "mbpo"]


@pytest.mark.full
@pytest.mark.parametrize("agents", [AGENTS, pytest.param(MORE_AGENTS, marks=pytest.mark.slow)])
def test_every_agent_has_the_same_bits_on_several_devices(tmp_path, agents):
    """Programs for one and for several devices are simplified differently unless that is forbidden."""
    alone, several = (start(1, devices, agents, tmp_path) for devices in (0, 4))
    for agent in agents:
        (expected,), (result,) = alone[agent], several[agent]
        assert result["params"] == expected["params"], agent
        assert str(result["metrics"]) == str(expected["metrics"]), agent  # no episode may have ended: NaN
        assert result["metrics"]["updates"] > 20 and result["place"] != expected["place"]


@pytest.mark.full
def test_two_devices_have_the_same_bits_on_one_core_and_on_two():
    """It is one program, also where sums are not ordered: cores only decide how long it takes."""
    command = [sys.executable, "-m", "tests.mpi.cases", "auto", "2", "ppo-fast"]
    environment = launch._environment() | {"PYTHONPATH": str(launch.ROOT)}
    results = []
    for prefix in ([], ["taskset", "-c", str(min(os.sched_getaffinity(0)))]):
        done = subprocess.run(
            [*prefix, *command], capture_output=True, text=True, env=environment, cwd=launch.ROOT, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        results += launch.results(done.stdout)
    assert results[0] == results[1] and "2 devices" in results[0]["place"]


def everyone(results, name):
    """Hashes by logical shard, from all ranks."""
    assert sum(len(result[name]) for result in results) == 12, "every shard is held once"
    return {shard: value for result in results for shard, value in result[name].items()}


@pytest.mark.full
@pytest.mark.parametrize("number", range(len(JOBS)))
def test_a_stretched_run_loses_nothing_and_has_the_same_bits(alone, jobs, number):
    """Over both engines: copies, replay, keys of every shard, and the parameters."""
    results = list(jobs.values())[number][STRETCHED]
    expected = alone[STRETCHED][number]
    assert everyone(results, "before") == expected["before"]
    assert everyone(results, "after") == expected["after"]
    assert len(set(expected["after"].values())) == 12
    for result in results:
        assert result["params"] == expected["params"]
        assert result["counters"] == expected["counters"]
        assert result["begun"] == expected["begun"] == (10 * number or None)


@pytest.mark.full
@pytest.mark.parametrize("case", ["ppo-fast", "dqn-fast"])
def test_fast_runs_agree_within_rounding(alone, jobs, case):
    expected = alone[case][0]["metrics"]
    for result in jobs["2 ranks"][case]:
        assert result["metrics"]["episodes"] == expected["episodes"] > 0
        for name, value in result["metrics"].items():
            np.testing.assert_allclose(value, expected[name], rtol=2e-3, atol=1e-5, err_msg=name)


@pytest.mark.full
def test_fast_and_deterministic_runs_are_the_same_run(alone):
    exact, fast = (alone[name][0]["metrics"] for name in ("ppo", "ppo-fast"))
    assert exact["episodes"] == fast["episodes"]
    np.testing.assert_allclose(exact["loss"], fast["loss"], rtol=2e-3)


@pytest.mark.full
def test_all_shards_together_sample_the_exact_distribution(jobs):
    """Chi-square against the priorities, drawn by two ranks from one memory; both see the same draws."""
    first, second = (np.array(result["counts"]) for result in jobs["2 ranks"]["sampling"])
    np.testing.assert_array_equal(first, second)
    mass = cases.priorities().astype(np.float64).reshape(-1)
    expected = mass / mass.sum() * first.sum()
    assert first.sum() == 400 * 12 * 8 and expected.min() > 5
    assert stats.chisquare(first, expected).pvalue > 1e-4
    shards = mass.reshape(12, 32).sum(axis=1)
    assert shards.max() > 2 * shards.min(), "shards differ in mass, so that the first level matters"


@pytest.mark.full
def test_a_learner_that_drifts_apart_is_found_and_named(jobs):
    errors = {result["rank"]: result["error"] for result in jobs["4 ranks"]["drift"]}
    assert sorted(errors) == [0, 1, 2, 3]
    for error in errors.values():  # all ranks know, and none goes on
        assert "diverged: rank 3 device 0 from rank 0" in error
