"""Actors and learners without MPI: mailbox, actor, ages, roles and schedules, joined by lists."""

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.comm.messaging import ControlMessage, Kind
from jaxrl_hpc.comm.ranks import Ranks
from jaxrl_hpc.comm.roles import Roles, assign
from jaxrl_hpc.comm.transport import Arrival
from jaxrl_hpc.comm.watchdog import Watchdog
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.metrics.trace import Trace
from jaxrl_hpc.runtime.build import build, hypers_of
from jaxrl_hpc.runtime.signals import StopSignals
from jaxrl_hpc.workflows.actor_learner import staleness
from jaxrl_hpc.workflows.actor_learner.actor import Actor
from jaxrl_hpc.workflows.actor_learner.arrival_log import (
    ArrivalEntry,
    ArrivalRecorder,
    ArrivalReplay,
    file_of,
)
from jaxrl_hpc.workflows.actor_learner.mailbox import ArrivalSchedule, Mailbox, MailboxRules
from jaxrl_hpc.workflows.actor_learner.messages import ActorSnapshot, Link, make_acting
from tests.mpi import actor_learner_jobs
from tests.tiers import quick

ROLES = Roles(None, 0, 1, 2, 1)  # one learner, two actors


class Lists:
    """Both ends of a transport, and letter boxes by rank."""

    gone = None

    def __init__(self, in_flight=2):
        self.params, self.messages, self.in_flight = None, deque(), in_flight
        self.boxes = {rank: deque() for rank in range(3)}
        self.counts = {}

    def publish(self, version, params):
        self.params = (version, params)

    def drain(self, limit):
        return [self.messages.popleft() for _ in range(min(limit, len(self.messages)))]

    def waiting(self):
        return len(self.messages)


class End:
    """An actor's end."""

    lost = 0

    def __init__(self, lists, actor):
        self.lists, self.actor, self.seen = lists, actor, -1

    def room(self):
        return sum(a.actor == self.actor for a in self.lists.messages) < self.lists.in_flight

    def offer(self, message):
        if self.room():
            self.lists.messages.append(Arrival(self.actor, message.copy()))
            return True
        return False

    def newest(self):
        if self.lists.params is None or self.lists.params[0] <= self.seen:
            return None
        self.seen = self.lists.params[0]
        return self.lists.params


class Letters:
    def __init__(self, lists, rank):
        self.lists, self.rank = lists, rank

    def send(self, rank, kind, number=0, extra=0, payload=None):
        payload = np.zeros(0, np.uint8) if payload is None else np.array(payload)
        self.lists.boxes[rank].append(ControlMessage(self.rank, kind, number, extra, payload))

    def receive(self):
        return self.lists.boxes[self.rank].popleft() if self.lists.boxes[self.rank] else None


@pytest.fixture(scope="module")
def acting():
    config = actor_learner_jobs.config_of("a2c", [])
    parts = build(config)
    hypers = jax.tree.map(jnp.float32, hypers_of(config))["agent"]
    return make_acting(parts.env, parts.agent, hypers, copies=4, length=8, priorities=False)


@pytest.fixture
def watchdog(tmp_path):
    return Watchdog(Ranks(), tmp_path, 0.0)


def mailbox_of(acting, lists, watchdog, kept=None, **changes):
    rules = {"max_lag": None, "history": 0, "given_up": lambda dropped, restarted: None}
    rules |= {name: changes.pop(name) for name in list(changes) if name in rules}
    schedule = ArrivalSchedule(
        **{name: changes.pop(name) for name in ("record", "replayed") if name in changes}
    )
    link = Link(changes.pop("roles", ROLES), lists, Letters(lists, 0), watchdog)
    kept = kept or ActorSnapshot.nothing(acting)
    return Mailbox(acting, link, kept, MailboxRules(**rules), schedule, changes.pop("add", lambda x: x))


def actor_of(acting, lists, watchdog, number, lag=0):
    roles, rank = ROLES._replace(rank=1 + number), 1 + number
    settings = {"lag": lag, "lockstep": False, "replayed": False}
    link = Link(roles, End(lists, number), Letters(lists, rank), watchdog)
    actor = Actor(acting, link, Trace(), **settings)
    actor.begin(jax.random.key(0))
    return actor


def turn(actor):
    """What an actor does between two looks at its letter box; whether it acted."""
    stop = StopSignals()
    actor.listen(stop)
    if actor.snapshot is not None:
        actor.report()
    if actor.stopped is not None or not actor.prepared():
        return False
    actor.act()
    actor.deliver(stop)
    return True


def parameters(acting):
    buffer = acting.params.empty()
    buffer[:] = 0
    return buffer


def test_ages_are_counted_and_old_unrolls_dropped(acting, watchdog):
    lists = Lists()
    mailbox = mailbox_of(acting, lists, watchdog, max_lag=2)
    actors = [actor_of(acting, lists, watchdog, number) for number in (0, 1)]
    mailbox.published(0, parameters(acting))
    assert all(turn(actor) for actor in actors)
    mailbox.published(3, parameters(acting))
    assert turn(actors[1])
    (taken,) = mailbox.take(1, version=3)  # those made with version 0 are three old by now
    assert (int(taken.header.actor), int(taken.header.sequence), int(taken.header.version)) == (1, 1, 3)
    assert mailbox.dropped == 2 and mailbox.taken == 3
    found = staleness.describe(mailbox.staleness.sums(), mailbox.staleness.largest)
    assert found["lag_max"] == 3 and found["lag_mean"] == 2.0 and found["dropped_unrolls"] == 2
    assert found["lag/2_3"] == pytest.approx(2 / 3) and found["lag/0"] == pytest.approx(1 / 3)


def test_a_learner_that_does_not_take_holds_its_actors_back(acting, watchdog):
    lists = Lists(in_flight=2)
    mailbox = mailbox_of(acting, lists, watchdog)
    actor = actor_of(acting, lists, watchdog, 0)
    mailbox.published(0, parameters(acting))
    assert [turn(actor) for _ in range(4)] == [True, True, False, False]
    mailbox.take(1, version=0)
    assert turn(actor) and not turn(actor)
    assert len(lists.messages) == 2 and not mailbox.queue, "what is not needed stays with its actor"


def test_snapshot_keeps_all_that_was_sent_and_nothing_that_came_later(acting, watchdog):
    lists = Lists(in_flight=4)
    mailbox = mailbox_of(acting, lists, watchdog)
    actors = [actor_of(acting, lists, watchdog, number) for number in (0, 1)]
    mailbox.published(0, parameters(acting))
    for _ in range(2):
        assert all(turn(actor) for actor in actors)
    mailbox.take(1, version=0)
    mailbox.backoff.pause = lambda: [turn(actor) for actor in actors]  # they act on while it waits
    kept = mailbox.snapshot()
    assert kept.ids.tolist() == [0, 1]
    sent = [int(acting.state.unpack(state).sequence) for state in kept.states]
    pending = [acting.message.unpack(m).header for m in kept.pending]
    numbers = {0: [], 1: []}
    for header in pending:
        numbers[int(header.actor)].append(int(header.sequence))
    assert numbers[0] == list(range(1, sent[0])), "its first was taken before"
    assert numbers[1] == list(range(sent[1]))
    assert kept.taken == 1 and kept.lost == 0
    later = [q for q in mailbox.queue if q.sequence >= sent[q.actor]]
    assert len(mailbox.queue) == len(pending) + len(later)

    # one actor goes on from it: it gets its own state, the other's is kept, and pending unrolls come first
    lists = Lists()
    alone = ROLES._replace(actors=1)
    other = mailbox_of(acting, lists, watchdog, kept, roles=alone)
    assert list(other.parked) == [1]
    actor = actor_of(acting, lists, watchdog, 0)
    assert actor.state.sequence == sent[0]
    first = other.take(len(pending), version=0)
    assert [int(m.header.sequence) for m in first] == [int(h.sequence) for h in pending]


def test_what_is_lost_after_an_actors_state_is_not_lost_for_its_checkpoint(acting, watchdog):
    """Unrolls 3 to 5 are lost. The state was taken after five: resumed, the actor makes the sixth again."""
    lists = Lists(in_flight=9)
    mailbox = mailbox_of(acting, lists, watchdog)
    actor = actor_of(acting, lists, watchdog, 0)
    other = actor_of(acting, lists, watchdog, 1)
    mailbox.published(0, parameters(acting))
    for number in range(7):
        if number == 5:
            actor.snapshot = 1
            actor.report()
        turn(actor)
    other.snapshot = 1
    other.report()
    lists.messages = deque(m for i, m in enumerate(lists.messages) if i not in (3, 4, 5))
    mailbox.take(3, version=0)
    mailbox.poll(100)
    assert mailbox.lost == 3
    assert set(mailbox._reports) == {0, 1}
    limits = mailbox._limits()
    assert limits == {0: 5, 1: 0} and mailbox.lost - mailbox._lost_later(limits) == 2


def test_injected_lag_acts_with_older_parameters(acting, watchdog):
    lists = Lists(in_flight=9)
    mailbox = mailbox_of(acting, lists, watchdog)
    actor = actor_of(acting, lists, watchdog, 0, lag=2)
    made = []
    for version in range(6):
        mailbox.published(version, parameters(acting))
        assert turn(actor)
        made.append(int(mailbox.take(1, version)[0].header.version))
    assert made == [0, 0, 0, 1, 2, 3]


def test_signals_of_actors_reach_the_learner(acting, watchdog):
    lists = Lists()
    mailbox = mailbox_of(acting, lists, watchdog)
    actor = actor_of(acting, lists, watchdog, 1)
    stop = StopSignals()
    stop.number = 10
    actor.listen(stop)
    actor.listen(stop)
    assert [note.kind for note in lists.boxes[0]] == [Kind.SIGNAL]
    mailbox.poll(1)
    assert mailbox.signal == (10, 2)


def test_roles():
    roles = assign(None, 7, 3, 2, 0, False)
    assert not roles.learns and roles.number == 1 and roles.actors == 5
    assert [roles.actors_of(learner) for learner in (0, 1)] == [[0, 2, 4], [1, 3]]
    assert assign(None, 4, 0, 2, 2, True).actors_of(0) == [0, 1]
    for arguments, text in (
        ((1, 0, 1, 0, False), "mpirun -n 3"),
        ((3, 0, 1, 4, False), "start 5 ranks"),
        ((3, 0, 2, 0, False), "each learner needs its own actor"),
    ):
        with pytest.raises(UserError, match=text):
            assign(None, *arguments)


def test_schedules_that_are_no_text(tmp_path):
    path = tmp_path / "schedule-0.csv"
    path.write_bytes(b"actor\xff\n")
    for read in (ArrivalReplay, ArrivalRecorder):
        with pytest.raises(UserError, match="is not text in UTF-8"):
            read(path, 1)


def test_schedule_is_cut_at_a_checkpoint_and_read_back(tmp_path):
    path = file_of(tmp_path, 0)
    recorder = ArrivalRecorder(path, 0)
    entries = [ArrivalEntry(0, 0, 0, 1), ArrivalEntry(1, 0, 0, 1), ArrivalEntry(0, 1, 1, 0)]
    for entry in entries:
        recorder.add(entry)
    recorder.flush()
    again = ArrivalRecorder(path, 2)
    again.add(ArrivalEntry(1, 1, 2, 1))
    again.flush()
    replayed = ArrivalReplay(path, 1)
    assert replayed.entries == [*entries[:2], ArrivalEntry(1, 1, 2, 1)]
    assert replayed.next() == entries[1] and replayed.wanted() == {0: 1, 2: 1} and replayed.actors() == 2
    replayed.position = 3
    with pytest.raises(UserError, match="needs more"):
        replayed.next()
    with pytest.raises(UserError, match="record_schedule=true"):
        ArrivalReplay(file_of(tmp_path, 1), 0)
    path.write_text("actor,sequence,version,used\n1,2\n")
    with pytest.raises(UserError, match="damaged"):
        ArrivalReplay(path, 0)


@pytest.mark.parametrize(
    "case, changes, text",
    [
        ("dqn", ["workflow.name=dyna", "workflow.batch_trajectories=2"], "one unroll at a time"),
        ("a2c", ["workflow.actor_priorities=true"], "cannot compute"),
        ("a2c", ["workflow.lockstep=true", "workflow.max_lag=1"], "max_lag"),
        ("a2c", ["workflow.publish_every=4", "workflow.max_lag=1"], "set it to 3 or more"),
        ("a2c", ["workflow.actor_lag=4", "workflow.max_lag=3"], "set it to 4 or more"),
        ("dqn", ["workflow.learner_mode=shared", "workflow.learners=3"], "multiple of workflow.learners"),
    ],
)
def test_what_does_not_fit_together(case, changes, text):
    with pytest.raises(UserError, match=text):
        build(actor_learner_jobs.config_of(case, changes))


@pytest.mark.parametrize("rated", quick([False, True], [True]))
@pytest.mark.parametrize("store_next", ["always", "by_index"])
def test_unrolls_added_at_once_are_stored_as_if_added_one_by_one(rated, store_next):
    changes = [f"workflow.actor_priorities={str(rated).lower()}", f"replay.store_next={store_next}"]
    memories = []
    for batch in (1, 3):
        config = actor_learner_jobs.config_of(
            "dqn", [*changes, f"workflow.batch_trajectories={batch}", "replay.capacity=768"]
        )
        flow = build(config).workflow
        hypers = jax.tree.map(jnp.float32, hypers_of(config))
        state = flow.init(jax.random.key(0), hypers)
        acting = make_acting(
            flow.learning.env, flow.learning.agent, hypers["agent"], copies=4, length=8, priorities=rated
        )
        params = flow.learning.agent.actor(state.learner)
        copies = acting.start(jax.random.key(1), np.int32(0))
        fill = jax.jit(lambda state, unrolls, flow=flow: flow.learning.fill(state, unrolls, flow.group))
        unrolls = []
        for _ in range(30):
            copies, _, trajectory, priority = acting.unroll(params, copies)
            unrolls.append((trajectory, priority))
            if len(unrolls) == batch:
                state, unrolls = fill(state, unrolls), []
        assert int(state.env_steps) == 30 * 4 * 8 and int(state.iteration) == 30 // batch
        memories.append(state.replay)
    one, several = memories
    assert int(one.memory.ring.written) == 240 > 192  # the ring has come round
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(one), jax.tree.leaves(several))
