"""Connections between a learner and actors that come and go: streams without gaps, and exact counts."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from jaxrl_hpc.comm.messaging import Kind
from jaxrl_hpc.comm.sockets import learner_end
from jaxrl_hpc.comm.sockets.actor_end import LearnerPlace, SocketActor, _ends
from jaxrl_hpc.comm.sockets.learner_end import Admission, SocketLearner, Stream
from jaxrl_hpc.comm.sockets.wire import Frame, LearnerGone
from jaxrl_hpc.errors import UserError
from tests.comm.socket_actor import MESSAGE, PARAMS, STATE, first, numbers, send, sizes

pytest.importorskip("zmq")
ROOT = Path(__file__).resolve().parents[2]
RUNS = {"version": "1"}
TOKEN = "a token"
PATIENCE = 600.0  # seconds, however busy the machine is


@pytest.fixture(autouse=True)
def _noticed_soon(monkeypatch):
    monkeypatch.setattr(learner_end, "PROBE_SECONDS", 0.02)


@pytest.fixture
def made():
    """Everything that a test makes, closed at its end."""
    things = []
    yield things
    for thing in things:
        if isinstance(thing, subprocess.Popen):
            thing.kill()
            thing.communicate()
        else:
            thing.close()


def learner(made, streams=(), counts=(), most=4, lost_seconds=20.0, in_flight=2):
    end = SocketLearner(
        sizes(in_flight),
        Admission(TOKEN, RUNS, most, lost_seconds),
        ("127.0.0.1", 0),
        dict(streams),
        dict(counts),
    )
    made.append(end)
    return end


def actor(made, end, token=TOKEN, runs=RUNS, key=None):
    place = LearnerPlace(["127.0.0.1"], end.port, (key or end.public_key).decode(), token, "the learner")
    found = SocketActor(place, end.sizes, runs, 20.0)
    made.append(found)
    return found


def until(condition, *looks, what="it happened"):
    """Call `looks` until the condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what}"
        for look in looks:
            look()
        time.sleep(0.001)  # between looks


def joined(made, end, **more):
    """An actor that has joined, and what it began with."""
    found = actor(made, end, **more)

    def stopped():
        end.serve()
        return False

    found.join(time.monotonic() + PATIENCE, stopped)
    notes = []
    until(lambda: notes, lambda: notes.extend(filter(None, [found.receive()])), what="START came")
    assert notes[0].kind == Kind.START
    return found, notes[0]


def process(made, end, in_flight=2, lost_seconds=20.0):
    """A real process that sends as fast as it may."""
    told = {"hosts": ["127.0.0.1"], "port": end.port, "public_key": end.public_key.decode(), "token": TOKEN}
    told |= {"in_flight": in_flight, "runs": RUNS, "lost_seconds": lost_seconds}
    started = subprocess.Popen(
        [sys.executable, "-m", "tests.comm.socket_actor", json.dumps(told)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    made.append(started)
    return started


def check(end, taken):
    """The promises, whatever has happened: `taken` are (actor, sequence) in the order of arrival."""
    counts = end.counts
    assert counts["joined_actors"] == counts["left_actors"] + counts["lost_actors"] + len(end.members)
    assert counts["acknowledged_unrolls"] == len(taken) == sum(s.length for s in end.streams.values())
    for number, stream in end.streams.items():
        assert [s for a, s in taken if a == number] == list(range(stream.length)), "once each, in order"
        if stream.length:
            assert first(stream.state) == [number, stream.length], "the state after the last of them"


def drain(end, taken, limit=100):
    taken.extend((a.actor, first(a.message)[1]) for a in end.drain(limit) if first(a.message)[0] == a.actor)


def test_what_was_not_acknowledged_is_made_again_by_the_next(made):
    end, taken = learner(made), []
    one, start = joined(made, end)
    assert (one.number, start.extra, start.payload.size) == (0, 0, 0)
    assert send(one) and send(one) and not one.room() and not send(one)
    until(lambda: end.waiting() == 2, end.serve)
    drain(end, taken, limit=1)
    until(one.room, one.newest, what="the first was acknowledged")
    assert one.acknowledged == 1 and end.waiting() == 1
    one.close()
    until(lambda: not end.members, end.serve, what="it was lost")
    drain(end, taken)
    assert end.counts == {
        "joined_actors": 1,
        "left_actors": 0,
        "lost_actors": 1,
        "acknowledged_unrolls": 1,
        "discarded_unrolls": 1,
    }
    two, start = joined(made, end)
    assert (two.number, start.extra, first(start.payload)) == (0, 1, [0, 1])
    assert send(two)
    until(lambda: len(taken) == 2, lambda: drain(end, taken))
    check(end, taken)


def test_a_learner_goes_on_with_the_streams_of_an_earlier_one(made):
    end = learner(made, {0: Stream(7, numbers(STATE, 0, 7))}, {"joined_actors": 3, "lost_actors": 3})
    found, start = joined(made, end)
    assert start.extra == 7 and first(start.payload) == [0, 7] and found.made == 7
    other, start = joined(made, end)
    assert (other.number, start.extra, start.payload.size) == (1, 0, 0)
    assert end.counts["joined_actors"] == 5


def test_who_wants_to_leave_goes_when_all_was_acknowledged(made):
    end, taken, notes = learner(made), [], []
    found, _ = joined(made, end)
    assert send(found) and send(found)
    found.send(0, Kind.SIGNAL, signal.SIGTERM)
    until(lambda: end.waiting() == 2, end.serve)
    drain(end, taken, limit=1)
    assert found.receive() is None and len(end.members) == 1
    drain(end, taken)
    # its wish to leave may come after the unrolls have been acknowledged
    until(lambda: notes, end.serve, lambda: notes.extend(filter(None, [found.receive()])), what="STOP came")
    assert (notes[0].kind, notes[0].number) == (Kind.STOP, 0)
    assert end.counts["left_actors"] == 1 and end.counts["discarded_unrolls"] == 0
    check(end, taken)


def test_parameters_reach_whoever_is_there_and_the_slow_skip_versions(made):
    end = learner(made)
    for version in range(3):
        end.publish(version, numbers(PARAMS, version))
    found, _ = joined(made, end)
    newest = []
    until(lambda: newest, lambda: newest.extend(filter(None, [found.newest()])), end.serve)
    assert newest[0][0] == 2 and first(newest[0][1], 1) == [2]
    for version in range(3, 50):  # it is not looking
        end.publish(version, numbers(PARAMS, version))
    until(lambda: newest[-1][0] == 49, lambda: newest.extend(filter(None, [found.newest()])), end.serve)
    versions = [version for version, _ in newest]
    assert versions == sorted(set(versions)) and len(versions) <= 4, "one was on its way, then the newest"


def test_who_is_refused(made):
    end = learner(made, most=1)
    for changes, text in (
        ({"token": "another"}, "the token is not that of this run"),
        ({"token": ""}, "the token is not that of this run"),
        ({"runs": {"version": "2"}}, "version: the learner has 1, this actor has 2"),
        ({"runs": {}}, "version: the learner has 1, this actor has None"),
    ):
        with pytest.raises(UserError, match=f"the learner refuses this actor: {text}"):
            joined(made, end, **changes)
    assert not end.members and end.counts["joined_actors"] == 0
    joined(made, end)
    with pytest.raises(LearnerGone, match=r"has 1 actors, as many as workflow.actors allows"):
        joined(made, end)
    assert end.counts["joined_actors"] == 1


def test_without_the_learners_key_nobody_can_even_greet(made):
    import zmq

    end = learner(made)
    stranger = actor(made, end, key=zmq.curve_keypair()[0])
    with pytest.raises(LearnerGone, match=r"cannot be reached at 127\.0\.0\.1"):
        stranger.join(time.monotonic() + PATIENCE, lambda: bool(end.serve()))
    with socket.create_connection(("127.0.0.1", end.port)) as plain:
        plain.sendall(os.urandom(4096))
        found, _ = joined(made, end)
    assert send(found)
    taken = []
    until(lambda: taken, lambda: drain(end, taken))
    check(end, taken)


def test_a_name_that_is_none_is_passed_over(made):
    """Hosts without a domain may call themselves so."""
    end = learner(made)
    place = LearnerPlace(
        ["node.(none)", "127.0.0.1"], end.port, end.public_key.decode(), TOKEN, "the learner"
    )
    found = SocketActor(place, end.sizes, RUNS, 20.0)
    made.append(found)
    found.join(time.monotonic() + PATIENCE, lambda: bool(end.serve()))
    assert found.number == 0


def test_nobody_answers(made):
    end = learner(made)
    found = actor(made, end)
    with pytest.raises(LearnerGone, match="does not answer"):
        found.join(time.monotonic() - 1, lambda: False)  # the learner is there, but busy
    end.close()
    with pytest.raises(LearnerGone, match="cannot be reached"):
        found.join(time.monotonic() + PATIENCE, lambda: False)


def test_names_that_no_host_can_have(made):
    end = learner(made)
    found = actor(made, end)
    found._place = found._place._replace(hosts=["a b", "\0", "\ud800", "127.0.0.1"])
    found.join(time.monotonic() + 60, lambda: bool(end.serve()))
    assert len(end.members) == 1


@pytest.mark.parametrize("key", ["", "short", "é" * 40, "\ud800"])
def test_a_key_that_is_none(made, key):
    place = LearnerPlace(["127.0.0.1"], 1, key, TOKEN, "the learner")
    found = SocketActor(place, sizes(), RUNS, 20.0)
    made.append(found)
    with pytest.raises(UserError, match="the public key of the learner is damaged"):
        found.join(time.monotonic() + 60, lambda: False)


JUNK = [
    [Frame.UNROLL.head],
    [Frame.UNROLL.head, b"short", b"", b""],
    [Frame.UNROLL.head, (5).to_bytes(8, "little"), bytes(MESSAGE), bytes(STATE)],  # not the next
    [Frame.UNROLL.head, bytes(8), bytes(MESSAGE + 1), bytes(STATE)],
    [Frame.NOTE.head, b"x"],
    [b"\xff"],
    [b""],
]


@pytest.mark.parametrize("junk", JUNK, ids=range(len(JUNK)))
def test_who_sends_what_makes_no_sense_is_dropped(made, junk):
    end, taken = learner(made), []
    bad, _ = joined(made, end)
    good, _ = joined(made, end)
    bad._put(*junk)
    until(lambda: len(end.members) == 1, end.serve, what="it was dropped")
    assert send(good)
    until(lambda: taken, lambda: drain(end, taken))
    assert end.counts["lost_actors"] == 1
    check(end, taken)


@pytest.mark.parametrize("greeting", [b"", b"{", b"[]", b'{"token": 1}', b"\xff", b"[" * 20_000])
def test_greetings_that_make_no_sense(made, greeting):
    end = learner(made)
    found = actor(made, end)
    found._hello = greeting
    with pytest.raises((LearnerGone, UserError)):
        found.join(time.monotonic() + 0.3, lambda: bool(end.serve()))
    joined(made, end)


def test_released_when_the_run_ends(made):
    end, taken = learner(made, in_flight=1), []
    found, _ = joined(made, end)
    started = process(made, end, in_flight=1)
    until(lambda: len(end.members) == 2 and len(taken) > 5, lambda: drain(end, taken))
    end.stop(finished=True)
    check(end, taken)
    assert end.counts["left_actors"] == 2 and not end.members
    output, _ = started.communicate(timeout=PATIENCE)
    assert output.splitlines()[-1] == "released 1"
    notes = []
    until(lambda: notes, lambda: notes.extend(filter(None, [found.receive()])))
    assert (notes[0].kind, notes[0].number) == (Kind.STOP, 1)


def test_a_killed_and_a_stopped_process_are_lost(made):
    silence = 5.0  # on a busy machine a process that is well may not run for a second
    end, taken = learner(made, lost_seconds=silence), []
    killed, stopped = (process(made, end, lost_seconds=silence) for _ in range(2))

    def delivering():
        return len(end.members) == 2 and all(member.delivered for member in end.members.values())

    until(delivering, lambda: drain(end, taken))
    killed.send_signal(signal.SIGKILL)
    until(lambda: end.counts["lost_actors"] == 1, lambda: drain(end, taken), what="the kill is noticed")
    (left,) = end.members.values()
    assert f"process {stopped.pid} " in left.who
    stopped.send_signal(signal.SIGSTOP)
    until(lambda: end.counts["lost_actors"] == 2, lambda: drain(end, taken), what="the silence is noticed")
    check(end, taken)
    stopped.send_signal(signal.SIGCONT)
    output, _ = stopped.communicate(timeout=PATIENCE)
    assert output.splitlines()[-1] == "gone: the connection to the learner has ended"
    _, start = joined(made, end)
    assert start.extra == end.streams[0].length > 0


def test_an_actor_notices_that_the_learner_has_gone(made):
    end = learner(made)
    found, _ = joined(made, end)
    end.close()
    with pytest.raises(LearnerGone, match="the connection to the learner has ended"):
        until(lambda: False, found.newest)


def test_nothing_waits_for_a_learner_that_has_gone(made):
    """It goes while the actor computes, so that the actor sends before it looks."""
    end = learner(made)
    found, _ = joined(made, end)
    end.close()
    ended(found)
    assert send(found)
    found.send(0, Kind.SIGNAL, signal.SIGTERM)
    with pytest.raises(LearnerGone, match="the connection to the learner has ended"):
        found.newest()


def test_the_last_word_of_a_learner_that_has_gone_is_read(made):
    end = learner(made)
    found, _ = joined(made, end)
    end.stop(finished=True)
    end.close()
    ended(found)
    assert send(found)
    note = found.receive()
    assert note is not None and (note.kind, note.number) == (Kind.STOP, 1)


def ended(found):
    """Wait until the end of an actor's connection can be noticed; it is not reading meanwhile."""
    events = set()
    until(lambda: events & _ends(found._zmq), lambda: events.update(found._events()), what="it ended")
    found._events = lambda events=events: events


def test_an_actor_that_has_joined_knows_where_its_stream_stands(made):
    """START may come long after WELCOME: it carries the state."""
    end = learner(made, {0: Stream(7, numbers(STATE, 0, 7))})
    found, held, whole = actor(made, end), [], end._send

    def without_start(identity, *frames):
        held.append((identity, *frames)) if frames[0] == Frame.NOTE.head else whole(identity, *frames)

    def stopped():
        end.serve()
        if found.number >= 0 and held:  # it may be on its way for several turns
            whole(*held.pop())
        return False

    end._send = without_start
    found.join(time.monotonic() + PATIENCE, stopped)
    assert (found.number, found.begun, found.made) == (0, 7, 7)


def test_who_sends_more_than_it_may_is_dropped(made):
    end = learner(made, in_flight=2)
    found, _ = joined(made, end)
    found.sizes = sizes(3)
    for _ in range(3):
        assert send(found)
    until(lambda: not end.members, end.serve, what="it was dropped")
    assert end.counts["discarded_unrolls"] == 2


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_events_keeps_the_accounts(made, seed):
    """Joins, unrolls, cuts, leaves and slow learners at random."""
    draw = random.Random(seed)
    end, taken, there = learner(made, most=3, in_flight=3), [], []
    sent = 0
    for _ in range(120):
        what = draw.choice(["join", "send", "send", "send", "cut", "leave", "drain", "drain"])
        if what == "join" and len(end.members) < 3:
            there.append(joined(made, end)[0])
        elif what == "send" and there:
            one = draw.choice(there)
            one.newest()
            sent += send(one)
        elif what in ("cut", "leave") and there:
            one = there.pop(draw.randrange(len(there)))
            number, before = one.number, len(end.members)
            if what == "leave":
                one.send(0, Kind.SIGNAL, 15)
            until(lambda n=number: any(m.number == n for m in end.members.values()), end.serve)
            if what == "leave":
                until(lambda b=before: len(end.members) < b, lambda: drain(end, taken))
            one.close()
            until(lambda b=before: len(end.members) < b, end.serve, what="it is gone")
        elif what == "drain":
            drain(end, taken, limit=draw.randrange(3))
        check(end, taken)
    last = there[-1] if there else joined(made, end)[0]
    while len(taken) <= 10:  # how many have come by now is a matter of time: the rest come undisturbed
        sent += send(last)
        drain(end, taken)
        last.newest()
    end.stop(finished=True)
    check(end, taken)
    assert len(taken) + end.counts["discarded_unrolls"] <= sent, "what was cut off on its way never came"
    assert end.counts["joined_actors"] > 5


def test_a_port_that_is_taken(made):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        with pytest.raises(UserError, match=f"workflow.listen: .* port {port}: Address already in use"):
            SocketLearner(sizes(), Admission(TOKEN, RUNS, 1, 1.0), ("127.0.0.1", port), {}, {})
    with pytest.raises(UserError, match=r"workflow.listen: cannot listen for actors at no-such-interface"):
        SocketLearner(sizes(), Admission(TOKEN, RUNS, 1, 1.0), ("no-such-interface", 0), {}, {})


def test_states_are_kept_as_they_came(made):
    end, taken = learner(made), []
    found, _ = joined(made, end)
    assert send(found)
    until(lambda: taken, lambda: drain(end, taken))
    state = end.streams[0].state
    assert state.ctypes.data % 64 == 0 and state.dtype == np.uint8 and state.size == STATE
