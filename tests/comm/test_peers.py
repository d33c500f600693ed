"""Vectors that ranks publish: newest and exact versions, and copies that are overtaken."""

import numpy as np
import pytest

from jaxrl_hpc.comm.params.peers import Peers
from tests.mpi import launch

pytestmark = [pytest.mark.mpi, launch.needs_mpi]
SIZE = 37


def vector(version: int) -> np.ndarray:
    return np.full(SIZE, version, np.float32)


@pytest.fixture
def peers():
    from mpi4py import MPI

    made = Peers(MPI.COMM_SELF, SIZE, seconds=0.05)
    made.publish(vector(0), 0)
    yield made
    made.close()


def test_the_newest_is_read_and_one_before_it_if_asked(peers) -> None:
    assert peers.read(0, 1) is None, "nothing new yet"
    for version in (1, 2):
        peers.publish(vector(version), version)
    found = peers.read(0, 1)
    assert found.version == 2 and (found.numbers == 2).all()
    found = peers.read(0, 1, exact=True)
    assert found.version == 1 and (found.numbers == 1).all()
    assert peers.read(0, 0, exact=True).version == 2, "version 0 is overwritten"


def test_a_copy_that_is_overtaken_is_not_used(peers, monkeypatch) -> None:
    peers.publish(vector(1), 1)
    plain, version = peers.window.read, [1]

    def overtaken(*arguments):
        plain(*arguments)
        for _ in range(2):  # the writer is faster than any copy
            version[0] += 1
            peers.publish(vector(version[0]), version[0])

    monkeypatch.setattr(peers.window, "read", overtaken)
    assert peers.read(0, 1) is None
    monkeypatch.undo()
    assert peers.read(0, 1).version == version[0]


def test_replayed_reads_hold_the_writer_back(peers) -> None:
    from jaxrl_hpc.comm.waiting import Stalled

    peers.publish(vector(1), 1)
    with pytest.raises(Stalled, match="all reads of version 0 of the schedule"):
        peers.publish(vector(2), 2, reads_before=1)
    assert (peers.repeat(0, 0).numbers == 0).all()
    peers.publish(vector(2), 2, reads_before=1)
    assert peers.newest(0) == 2
    with pytest.raises(Stalled, match="version 3 of rank 0"):
        peers.repeat(0, 3)
