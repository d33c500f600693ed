"""Whose rings a learner reads: its own in turn, anyone's at random, or those of others to help."""

from collections import Counter
from types import SimpleNamespace

import numpy as np

from jaxrl_hpc.comm.rma.atomics import Bitmap
from jaxrl_hpc.comm.rma.ring import RingQueue
from jaxrl_hpc.comm.rma.transport import RmaOptions, WindowActor, WindowLearner
from jaxrl_hpc.comm.rma.versioned_slot import VersionedSlot
from jaxrl_hpc.comm.roles import Roles
from jaxrl_hpc.comm.transport import BufferSizes
from tests.comm.interleaving import Turns, windows

SIZES = BufferSizes(message=16, params=24, in_flight=3)
LEARNERS, ACTORS = 2, 5  # learner 0 has actors 0, 2, 4; learner 1 has 1, 3


def ends(options):
    """(learners' ends, actors' ends, turns), all in one process."""
    turns = Turns(3)
    room = RingQueue.nbytes(SIZES.in_flight, SIZES.message)
    flags, slot = Bitmap.nbytes(ACTORS), VersionedSlot.nbytes(SIZES.params)
    views = windows(turns, LEARNERS + ACTORS, flags + slot + ACTORS * room)

    def structures(rank):
        view, roles = views[rank], Roles(None, rank, LEARNERS, ACTORS, LEARNERS)
        place = (SIZES.in_flight, SIZES.message, options.rule, not options.mixed(roles))
        return SimpleNamespace(
            roles=roles,
            options=options,
            active=Bitmap(view, 0, 0, ACTORS),
            slots=[VersionedSlot(view, learner, flags, SIZES.params) for learner in range(LEARNERS)],
            rings=[RingQueue(view, 0, flags + slot + a * room, *place) for a in range(ACTORS)],
        )

    learners = [WindowLearner(structures(rank)) for rank in range(LEARNERS)]
    actors = [WindowActor(structures(LEARNERS + number), SIZES) for number in range(ACTORS)]
    return learners, actors, turns


def message(number):
    return np.full(SIZES.message, number, np.uint8)


def numbers(arrivals):
    return [(arrival.actor, int(arrival.message[0])) for arrival in arrivals]


def test_range_takes_from_own_actors_in_turn_and_holds_them_back():
    (first, second), actors, turns = ends(RmaOptions("actor"))

    def work():
        for actor in actors:
            for number in range(SIZES.in_flight):
                assert actor.room() and actor.offer(message(number))
            assert not actor.room() and not actor.offer(message(9))
        taken = numbers(first.drain(4))
        assert len({actor for actor, _ in taken}) == 3, "one from each before a second from any"
        taken += numbers(first.drain(1000))
        assert Counter(actor for actor, _ in taken) == {0: 3, 2: 3, 4: 3}
        for actor in (0, 2, 4):
            assert [number for a, number in taken if a == actor] == [0, 1, 2]
        assert first.drain(1000) == [] and first.gone is None and first.counts == {}
        assert second.drain(0) == [] and len(second.drain(2)) == 2 and second.waiting() == 4
        assert actors[0].room() and actors[0].lost == 0

    turns.run(work)


def test_random_takes_from_anyone_and_knows_what_has_gone():
    learners, actors, turns = ends(RmaOptions("actor", rule="drop_oldest", selection="random"))

    def work():
        for number in range(5):
            for actor in actors:
                assert actor.offer(message(number))
        assert [actor.lost for actor in actors] == [2] * ACTORS
        taken = [numbers(learner.drain(6)) for learner in learners]
        both = taken[0] + taken[1]
        assert len(set(both)) == 12 and {actor for actor, _ in taken[0]} == set(range(ACTORS))
        gone = sum(learners[0].gone(actor) for actor in range(ACTORS))
        assert gone == 12 + 2 * ACTORS
        assert learners[0].counts == {"collisions": 0, "helped": 0}

    turns.run(work)


def test_a_learner_helps_when_it_has_nothing_and_only_where_an_actor_has_to_wait():
    (first, second), actors, turns = ends(RmaOptions("learner", help=True))

    def work():
        for number in range(SIZES.in_flight - 1):
            actors[1].offer(message(number))
        assert first.drain(5) == [], "the queue of actor 1 is not full: its own learner will come"
        actors[1].offer(message(7))
        assert numbers(first.drain(5)) == [(1, 0)], "one, and the oldest"
        assert first.drain(5) == [] and first.helped == 1
        assert numbers(second.drain(5)) == [(1, 1), (1, 7)] and second.helped == 0
        for number in range(SIZES.in_flight):
            actors[1].offer(message(number))
        actors[0].offer(message(3))
        assert numbers(first.drain(5)) == [(0, 3)], "its own come first"
        second._structures.active.clear(1)
        assert first.drain(5) == [], "an actor that does not take part any more is left alone"
        assert first.counts["helped"] == 1 and first.gone(1) == 3

    turns.run(work)


def test_a_learner_whose_own_actors_have_ended_takes_from_any_ring():
    (first, _), actors, turns = ends(RmaOptions("learner", help=True))

    def work():
        actors[1].offer(message(1))
        assert first.drain(5) == [], "its own actors may still be starting"
        for number in (0, 2, 4):
            actors[number].offer(message(number))
        assert len(first.drain(5)) == 3 and first.drain(5) == []
        for number in (0, 2):
            first._structures.active.clear(number)
        assert first.drain(5) == [], "actor 4 still takes part"
        first._structures.active.clear(4)
        assert numbers(first.drain(5)) == [(1, 1)] and first.helped == 1
        assert first.drain(5) == []
        actors[3].offer(message(3))
        first._structures.active.clear(3)
        assert numbers(first.drain(5)) == [(3, 3)], "also what an actor has left behind"

    turns.run(work)


def test_a_learner_publishes_what_it_kept_aside_when_it_looks_for_messages():
    (first, _), actors, turns = ends(RmaOptions("actor"))

    def work():
        actors[2]._slot._ask(1)
        first.publish(1, np.full(SIZES.params, 1, np.uint8))
        first.publish(2, np.full(SIZES.params, 2, np.uint8))
        assert actors[0].newest() is None
        actors[2]._slot._ask(-1)
        first.drain(0)
        assert actors[0].newest()[0] == 2

    turns.run(work)


def test_parameters_come_from_the_actors_own_learner_and_never_twice():
    (first, second), actors, turns = ends(RmaOptions("actor"))

    def work():
        assert actors[0].newest() is None
        first.publish(4, np.full(SIZES.params, 1, np.uint8))
        second.publish(4, np.full(SIZES.params, 2, np.uint8))
        first.publish(6, np.full(SIZES.params, 3, np.uint8))
        for number, version, value in ((0, 6, 3), (1, 4, 2), (4, 6, 3)):
            found = actors[number].newest()
            assert found[0] == version and (found[1] == value).all() and actors[number].newest() is None

    turns.run(work)
