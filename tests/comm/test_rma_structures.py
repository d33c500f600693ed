"""One-sided structures under interleavings drawn at random: nothing lost, nothing twice, nothing torn.

On real ranks: tests/mpi/test_one_sided.py.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_hpc.comm.rma import versioned_slot as slots
from jaxrl_hpc.comm.rma.atomics import AtomicCounter, Bitmap
from jaxrl_hpc.comm.rma.ring import RingQueue
from jaxrl_hpc.comm.rma.versioned_slot import VersionedSlot
from jaxrl_hpc.comm.waiting import Stalled
from tests.comm.interleaving import Turns, windows

seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=25, deadline=None)


def payload(number: int, length: int) -> np.ndarray:
    """Bytes that all depend on the number: half of one and half of another are neither."""
    return ((number * 31 + 7 * np.arange(length)) % 251).astype(np.uint8)


def collect(rings: list[RingQueue], unfinished: list, found: list) -> None:
    """A consumer, until all producers have ended and all rings are empty."""
    while True:
        done = not unfinished
        items = [(p, ring.take()) for p, ring in enumerate(rings)]
        for p, item in items:
            if item is not None:
                found.append((p, item.number, item.data.copy()))
        if done and not any(ring.waiting() for ring in rings):
            return


@pytest.mark.parametrize("rule", ["block", "reject", "drop_oldest"])
@given(seed=seeds, capacity=st.integers(1, 4), consumers=st.integers(1, 3))
@few
def test_every_item_is_delivered_once_or_counted(rule, seed, capacity, consumers):
    turns, producers, count = Turns(seed), 2, 12
    views = windows(turns, producers + consumers, RingQueue.nbytes(capacity, 40))
    # rings in the memory of their producer and of a consumer
    owners = [0, producers]
    alone = consumers == 1 and seed % 2 == 0
    made = [[RingQueue(view, owner, 0, capacity, 40, rule, alone) for owner in owners] for view in views]
    unfinished = list(range(producers))
    found = [[] for _ in range(consumers)]

    def produce(p):
        for number in range(count):
            made[p][p].push(payload(number + p, 1 + (number * 7) % 40))
        unfinished.remove(p)

    turns.run(
        *(lambda p=p: produce(p) for p in range(producers)),
        *(lambda c=c: collect(made[producers + c], unfinished, found[c]) for c in range(consumers)),
    )
    everything = [item for one in found for item in one]
    for p, number, data in everything:
        np.testing.assert_array_equal(data, payload(number + p, 1 + (number * 7) % 40))
    for p in range(producers):
        counts = made[p][p].counts
        numbers = [number for q, number, _ in everything if q == p]
        assert len(set(numbers)) == len(numbers), "delivered twice"
        assert len(numbers) + counts["rejected"] + counts["dropped"] == count
        assert counts["pushed"] + counts["rejected"] == count
        if rule == "block":
            assert counts["rejected"] == counts["dropped"] == 0
        for one in found:
            order = [number for q, number, _ in one if q == p]
            assert order == sorted(order)
    collisions = sum(ring.counts["collisions"] for row in made[producers:] for ring in row)
    if consumers == 1 and rule != "drop_oldest":
        assert collisions == 0


@given(seed=seeds, depth=st.integers(2, 4), readers=st.integers(1, 3))
@few
def test_a_slot_is_never_torn_and_never_goes_back(seed, depth, readers):
    turns, writes = Turns(seed), 8
    views = windows(turns, 1 + readers, VersionedSlot.nbytes(48, depth))
    made = [VersionedSlot(view, 0, 0, 48, depth) for view in views]
    unfinished = [0]
    seen = [[] for _ in range(readers)]

    def write():
        for number in range(writes):
            made[0].write(payload(3 * number, 48), 3 * number)
        while not made[0].settle():
            turns.change()
        unfinished.clear()

    def read(reader):
        out = np.zeros(48, np.uint8)
        while True:
            done = not unfinished
            version = made[1 + reader].read(out)
            if version is not None:
                np.testing.assert_array_equal(out, payload(version, 48))
                seen[reader].append(version)
            elif done:
                return

    turns.run(write, *(lambda r=r: read(r) for r in range(readers)))
    for versions in seen:
        assert versions == sorted(set(versions)) and versions[-1] == 3 * (writes - 1)


def hasty(view, slot, per_read):
    """A view during whose every read the writer of a slot publishes so many times."""
    plain = view.read

    def read(*arguments):
        plain(*arguments)
        for _ in range(per_read):
            slot.count += 1
            slot.write(payload(slot.count, 48), slot.count)

    view.read = read
    return view


def test_a_reader_that_is_always_overtaken_asks_for_time_and_the_writer_goes_on_afterwards():
    turns = Turns(4)
    views = windows(turns, 2, VersionedSlot.nbytes(48))

    def work():
        writer, out = VersionedSlot(views[0], 0, 0, 48), np.zeros(48, np.uint8)
        writer.count = 1
        writer.write(payload(1, 48), 1)
        reader = VersionedSlot(hasty(views[1], writer, 3), 0, 0, 48)
        version = reader.read(out, seconds=600)
        np.testing.assert_array_equal(out, payload(version, 48))
        assert reader.retries == 2 and version == 7, "two reads in vain, then three writes each were held"
        assert writer.count == 10 and reader.fresh() is False
        assert writer.settle() and reader.fresh(), "the newest of them is published afterwards"
        reader.window.read = type(views[1]).read.__get__(views[1])
        assert reader.read(out) == 10
        np.testing.assert_array_equal(out, payload(10, 48))

    turns.run(work)


def test_a_reader_that_never_finishes_holds_the_writer_up_for_a_while_only(monkeypatch):
    turns, now = Turns(5), [100.0]
    views = windows(turns, 2, VersionedSlot.nbytes(8))
    monkeypatch.setattr(slots.time, "monotonic", lambda: now[0])

    def work():
        writer, reader = (VersionedSlot(view, 0, 0, 8) for view in views)
        reader._ask(1)  # and dies
        waits = []
        for number in range(10):
            writer.write(payload(number, 8), number)
            assert not reader.fresh()
            begin = now[0]
            while not writer.settle():
                now[0] += 0.5
            assert reader.read(np.zeros(8, np.uint8)) == number
            waits.append(now[0] - begin)
        assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
        reader._ask(-1)
        writer.write(payload(0, 8), 11)
        assert reader.fresh() and writer.settle(), "at once, when nobody asks any more"

    turns.run(work)


@given(seed=seeds)
@few
def test_of_many_who_set_a_bit_one_is_the_first(seed):
    turns, count = Turns(seed), 70
    views = windows(turns, 3, Bitmap.nbytes(count))
    maps = [Bitmap(view, 1, 0, count) for view in views]
    first = [[] for _ in views]

    def work(rank):
        for bit in np.random.default_rng([seed, rank]).permutation(count):
            if not maps[rank].set(int(bit)):
                first[rank].append(bit)

    turns.run(*(lambda r=r: work(r) for r in range(3)))
    assert sorted(np.concatenate(first)) == list(range(count))

    def look():
        assert maps[0].all().all() and maps[0].clear(31) and not maps[0].clear(31) and maps[0].clear(69)
        np.testing.assert_array_equal(np.flatnonzero(~maps[1].all()), [31, 69])
        assert maps[2].test(0) and not maps[2].test(69)
        with pytest.raises(IndexError, match="bit 70 of a bitmap of 70"):
            maps[0].set(70)

    turns.run(look)


def test_counters_add_and_keep_extremes():
    turns = Turns(0)
    (view,) = windows(turns, 1, 2 * AtomicCounter.NBYTES)

    def work():
        total, high = (AtomicCounter(view, 0, i * AtomicCounter.NBYTES) for i in range(2))
        assert [total.add(5), total.add(-2), total.read()] == [0, 5, 3]
        assert [high.maximum(9), high.maximum(1), high.replace(2), high.read()] == [0, 9, 9, 2]

    turns.run(work)


@pytest.mark.parametrize("alone", [False, True])
def test_a_full_ring_says_who_waits_for_what_and_a_ring_that_wraps_stays_in_order(alone):
    turns = Turns(1)
    (view,) = windows(turns, 1, RingQueue.nbytes(3, 8))

    def work():
        ring = RingQueue(view, 0, 0, 3, 8, alone=alone)
        ring._wrap = 6  # counters that start anew after six items
        for number in range(20):
            assert ring.push(payload(number, 8))
            item = ring.take()
            assert item.number == number
            np.testing.assert_array_equal(item.data, payload(number, 8))
        assert ring.take() is None
        for number in range(3):
            ring.push(payload(number, 8))
        assert ring.waiting() == ring.depth() == 3
        with pytest.raises(Stalled, match=r"rank 0 waited .* s for space in the ring of rank 0, full with 3"):
            ring.push(payload(0, 8), seconds=0.01)
        assert not ring.push(payload(0, 8), look=lambda: True)
        with pytest.raises(ValueError, match="9 bytes does not fit into 8"):
            ring.push(payload(0, 9))

    turns.run(work)
