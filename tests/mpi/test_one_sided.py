"""One-sided memory on real ranks: nothing lost, twice or torn, and progress while a rank computes.

Interleavings that ranks hardly ever meet are in tests/comm/test_rma_structures.py.
"""

import os
import shutil
import subprocess
import sys

import pytest

from jaxrl_hpc.cli.doctor_checks import find_mpiexec
from jaxrl_hpc.cli.doctor_mpi import _environment
from tests.mpi import launch

pytestmark = [pytest.mark.mpi, launch.needs_mpi]
RULES = ["block", "reject", "drop_oldest"]


def run(ranks, *arguments, seconds=launch.PATIENCE):
    status, output = launch.run(ranks, "-m", "tests.mpi.one_sided", *arguments, seconds=seconds)
    assert status == 0, output
    return launch.results(output)


def check(result, ranks, items):
    assert result["counters"]["right"] and result["bits"]["right"]
    slot = result["slot"]
    assert slot["torn"] == 0 and slot["rising"] and slot["reads"] >= ranks - 1
    tried = [(ring["rule"], ring["consumers"]) for ring in result["rings"]]
    assert tried == [(rule, consumers) for rule in RULES for consumers in sorted({1, ranks - 1})]
    for ring in result["rings"]:
        assert ring["bad"] == ring["twice"] == ring["missing"] == 0 and ring["ordered"], ring
        producers = ranks - ring["consumers"]
        assert ring["delivered"] + ring["lost"] == producers * items
        if ring["rule"] == "block":
            assert ring["lost"] == 0
        if ring["consumers"] == 1 and ring["rule"] != "drop_oldest":
            assert ring["collisions"] == 0


@pytest.fixture(scope="module")
def jobs():
    """(results of three ranks, (status, output) of two that end with a status); the latter mostly wait."""
    leaving = launch.start(2, "-m", "tests.mpi.one_sided", "", "0", "broken", "status")
    found = run(3, "shared,network", "120", "progress", "broken")
    return found, launch.finish(leaving, launch.PATIENCE)


@pytest.fixture(scope="module")
def quick(jobs):
    return jobs[0]


@pytest.mark.parametrize("kind", ["shared", "network"])
def test_every_item_is_delivered_once_or_counted_in_order_and_whole(quick, kind):
    (result,) = [r for r in quick if r.get("kind") == kind]
    check(result, ranks=3, items=120)


@pytest.fixture(scope="module")
def two():
    """(results, output)"""
    status, output = launch.run(2, "-m", "tests.mpi.one_sided", "shared,network", "100", "full")
    assert status == 0, output
    return launch.results(output), output


@pytest.mark.full
def test_two_ranks_with_a_ring_between_them_lose_nothing_either(two):
    for result in two[0][:2]:
        check(result, ranks=2, items=100)


@pytest.mark.full
def test_without_room_for_the_real_window_on_one_rank_all_go_on_with_messages(two):
    results, output = two
    assert results[-1] == {"full": {"1000": [True, True], "1048576": [False, False]}}
    (said,) = [line for line in output.splitlines() if line.startswith("one-sided memory")]
    assert "MiB of shared memory, but /dev/shm has 1 MiB: enlarge it" in said
    assert said.endswith("two-sided messages instead, for which workflow.when_full=reject has no effect")


@pytest.mark.parametrize("kind", ["shared", "network"])
def test_memory_is_reached_while_its_rank_sits_in_a_compiled_call(quick, kind):
    """On one host; without progress not one round would end before the call does."""
    (result,) = [r for r in quick if r.get("kind") == kind]
    assert result["progress"]["least"] > 10


def test_the_self_test_tells_right_from_wrong_and_from_endless(quick):
    (found,) = [result for result in quick if "endless" in result]
    assert found["works"]["works"] and "a ring work" in found["works"]["text"]
    assert found["network"]["works"] and not found["works"]["needs_thread"]
    wrong, endless = found["wrong"], found["endless"]
    assert not wrong["works"] and "rank 2: RuntimeError: atomic additions gave" in wrong["text"]
    assert not wrong["stuck"], "all ranks left it together"
    assert not endless["works"] and endless["text"] == "rank 2: no end of stage claimed within 10 s"
    assert endless["stuck"] and {"last words": 1} in quick, "and yet the job ended well, its last words said"


def test_a_status_is_kept_by_those_who_leave_a_thread_behind(jobs):
    status, output = jobs[1]
    assert status == 7, output
    assert {"last words": 1} in launch.results(output)


def hosts_can_be_made():
    """Network namespaces need root and the tool `ip`."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"jrl-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return made.returncode == 0


@pytest.mark.slow
def test_over_a_network_all_is_right_and_a_thread_makes_progress():
    """Two hosts with two ranks each, which reach each other by TCP only."""
    if not hosts_can_be_made():
        pytest.skip("no network namespaces here")
    script = str(launch.ROOT / "scripts" / "mpi_hosts.sh")
    program = [sys.executable, "-m", "tests.mpi.one_sided", "network", "100", "thread"]
    settings = {"PYTHONPATH": str(launch.ROOT), "RANKS_PER_HOST": "2", "MPIEXEC": str(find_mpiexec())}
    done = subprocess.run(
        [script, "2", *program],
        capture_output=True,
        text=True,
        env=_environment() | settings,
        cwd=launch.ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = launch.results(done.stdout)
    check(result, ranks=4, items=100)
    assert result["thread"]["least"] > 10


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_million_operations():
    results = run(4, "shared,network", "6000", "thread", seconds=3500)
    for result in results:
        check(result, ranks=4, items=6000)
        assert result["thread"]["least"] > 10
    assert sum(result["operations"] for result in results) > 1_000_000
