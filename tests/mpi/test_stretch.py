"""A run goes on with another number of ranks and devices: nothing is lost, doubled or changed."""

import pytest

from tests.mpi import launch

pytestmark = [pytest.mark.mpi, launch.needs_mpi]
SIZES = [(4, 0), (2, 0), (1, 4), (3, 0)]


def one_chunk(ranks, devices, folder):
    status, output = launch.run(ranks, "-m", "tests.mpi.cases", "stretch", str(devices), "dqn", str(folder))
    assert status == 0, output
    return launch.results(output)


def test_four_two_one_three(tmp_path):
    after = None
    for number, (ranks, devices) in enumerate(SIZES):
        results = one_chunk(ranks, devices, tmp_path / "stretched")
        assert len(results) == ranks
        before = {shard: value for result in results for shard, value in result["before"].items()}
        assert sum(len(result["before"]) for result in results) == 12, "a shard is held once"
        assert sorted(map(int, before)) == list(range(12))
        if after is not None:
            assert before == after, "every shard is as it was saved: copies, replay, keys"
            assert all(result["begun"] == 10 * number for result in results)
        after = {shard: value for result in results for shard, value in result["after"].items()}
        assert len(set(after.values())) == 12
        assert len({result["params"] for result in results}) == 1
    stretched = results[0]
    for _ in SIZES:
        whole = one_chunk(1, 0, tmp_path / "whole")
    assert whole[0]["params"] == stretched["params"]
    assert whole[0]["after"] == after
    assert whole[0]["counters"] == stretched["counters"]
