"""A Slurm that the tests start themselves, or a clear reason why not."""

import os

import pytest

from tests.slurm.cluster import Cluster, missing


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    reason = missing()
    if reason and os.environ.get("JAXRL_HPC_REQUIRE_SLURM"):
        pytest.fail(f"JAXRL_HPC_REQUIRE_SLURM is set, but {reason}")
    if reason:
        pytest.skip(reason)
    with Cluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running
