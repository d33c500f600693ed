"""Exchanging parameters: every rule adds what it is given once, numbers exchanges, leaves out what is old."""

import itertools

import numpy as np
import pytest

from jaxrl_hpc.comm.params import exchange, server
from jaxrl_hpc.comm.rma.atomics import Mutex
from jaxrl_hpc.comm.waiting import Stalled
from tests.mpi import launch

pytestmark = [pytest.mark.mpi, launch.needs_mpi]
SIZE = 64  # float32 numbers


def settings(**changes):
    base = exchange.ExchangeSettings(4 * SIZE, 4 * SIZE, exchange.add_numbers, None, 5.0, False)
    return base._replace(**changes)


def ones(value=1.0):
    return np.full(SIZE, value, np.float32).view(np.uint8)


@pytest.mark.parametrize("rule", ["lock", "hogwild", "accumulate"])
def test_changes_are_added_and_numbered(rule):
    from mpi4py import MPI

    store = exchange.WindowExchange(MPI.COMM_SELF, rule, settings(max_lag=2))
    store.load(ones(10.0), 5)
    answers = [store.swap(ones(i), since, None) for i, since in ((1.0, 5), (2.0, 4), (100.0, 4))]
    assert [a.number for a in answers] == [5, 6, 7] and [a.used for a in answers] == [True, True, False]
    assert [a.data.view(np.float32)[7] for a in answers] == [11.0, 13.0, 13.0]
    np.testing.assert_array_equal(store.read().view(np.float32), np.full(SIZE, 13.0, np.float32))
    store.close()


def test_an_exchange_waits_for_its_turn():
    from mpi4py import MPI

    store = exchange.WindowExchange(MPI.COMM_SELF, "lock", settings(ordered=True, seconds=0.2))
    store.load(ones(), 0)
    assert store.swap(ones(), 0, 0).number == 0
    with pytest.raises(Stalled, match=r"rank 0 waited .* for exchange 4 of the schedule"):
        store.swap(ones(), 0, 5)
    store.close()


def test_a_lock_that_is_not_given_back_names_its_holder():
    from mpi4py import MPI

    from jaxrl_hpc.comm.rma.window import Window

    window = Window(MPI.COMM_SELF, 64)
    mutex = Mutex(window, 0, 0, 0.1)
    with mutex.held():
        assert mutex.holder() == 0
        with pytest.raises(Stalled, match="for the lock, which rank 0 holds"), mutex.held():
            pass
    assert mutex.holder() is None and mutex.contended == 1
    window.free()


@pytest.mark.parametrize("nbytes, shards", [(64, 1), (64 * 7, 3), (64 * 100, 8), (64, 2)])
def test_shards_are_whole_lines_and_all_of_it(nbytes, shards):
    parts = server.bounds(nbytes, shards)
    assert len(parts) == shards and parts[0][0] == 0 and parts[-1][1] == nbytes
    assert all(a[1] == b[0] for a, b in itertools.pairwise(parts))
    assert all(low % 64 == 0 for low, _ in parts)
