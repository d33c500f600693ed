"""A learner's end of the connections to volatile actors.

An actor's number identifies a stream of unrolls 0, 1, 2, …, not a process. Every unroll comes with the
actor's state after it. When the learner takes an unroll, it acknowledges it and keeps that state, so that it
can give the stream to another process at any time, which continues after the last acknowledged unroll. A
stream has neither gaps nor repetitions, whichever processes made its parts.

    arrived ── drain: state kept, acknowledged ──→ mailbox        the connection ends ──→ arrived: discarded

Unacknowledged unrolls are made again by the next holder of the stream. An actor is lost when its connection
is: at once if the process died, after `lost_seconds` if its host vanished or it was stopped. A slow actor is
not lost, and does not delay the others.
"""

from __future__ import annotations

import hmac
import json
import logging
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxrl_hpc.comm.messaging import ControlMessage, Kind
from jaxrl_hpc.comm.sockets.wire import (
    HELLO_BYTES,
    NUMBER,
    Frame,
    SocketSizes,
    configure,
    note,
    own,
    read_note,
)
from jaxrl_hpc.comm.transport import Arrival
from jaxrl_hpc.errors import UserError

log = logging.getLogger(__name__)
COUNTS = ("joined_actors", "left_actors", "lost_actors", "acknowledged_unrolls", "discarded_unrolls")
NONSENSE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, struct.error)
PROBE_SECONDS = 0.5  # between checks whether connections still exist
FAREWELL_SECONDS = 5.0  # for the last messages to leave this process


class Stream(NamedTuple):
    """The unrolls of one actor number, up to the last acknowledged one."""

    length: int = 0
    state: np.ndarray | None = None  # [state] uint8 after them; None: a fresh one


class Member:
    """A connected actor."""

    def __init__(self, number: int, who: str) -> None:
        self.number, self.who = number, who
        self.arrived: deque[tuple[np.ndarray, np.ndarray]] = deque()  # messages and states
        self.sent: int | None = None  # version of the parameters on their way to it
        self.seen = -1  # and of the newest that it was sent
        self.leaving = self.delivered = False


class Admission(NamedTuple):
    """Conditions for actors to join."""

    token: str
    runs: Mapping[str, Any]  # what an actor must run too: name -> value
    most: int  # actors at the same time
    lost_seconds: float


class SocketLearner:
    """A `LearnerSide` (comm/transport.py) and the control messages beside it.

    Args:
      sizes: of buffers.
      admission: who may take part.
      listen: address or interface, `*` for all, and port, 0 for any.
      streams: of a run that is continued, by number.
      counts: its `counts` so far.
      milliseconds: of the run so far.
    """

    gone: Callable[[int], int] | None = None

    def __init__(
        self,
        sizes: SocketSizes,
        admission: Admission,
        listen: tuple[str, int],
        streams: Mapping[int, Stream],
        counts: Mapping[str, int],
        milliseconds: Callable[[], int] = lambda: 0,
    ) -> None:
        import zmq

        self.sizes, self.admission = sizes, admission
        self.streams = dict(streams)
        self.members: dict[bytes, Member] = {}
        self.last_event = self.last_unroll = time.monotonic()  # an actor joined or an unroll arrived
        self._zmq, self._milliseconds = zmq, milliseconds
        self._counts = {name: counts.get(name, 0) for name in COUNTS}
        self._order: deque[bytes] = deque()  # whose unrolls have arrived, one entry each
        self._notes: deque[ControlMessage] = deque()
        self._latest: tuple[int, np.ndarray] | None = None
        self._probed = 0.0
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        configure(self._socket, admission.lost_seconds)
        self.public_key, secret = zmq.curve_keypair()
        self._socket.set(zmq.CURVE_SERVER, 1)
        self._socket.set(zmq.CURVE_SECRETKEY, secret)
        self._socket.set(zmq.ROUTER_MANDATORY, 1)  # sending to one that has gone is an error
        self._socket.set(zmq.MAXMSGSIZE, max(sizes.message, sizes.state, HELLO_BYTES) + 1024)
        try:
            self._socket.bind(f"tcp://{listen[0]}:{listen[1] or '*'}")
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise UserError(
                f"workflow.listen: cannot listen for actors at {listen[0]}, port {listen[1] or 'any'}: "
                f"{error.strerror}"
            ) from None
        self.port = int(self._socket.get_string(zmq.LAST_ENDPOINT).rpartition(":")[2])

    @property
    def delivered(self) -> bool:
        """Whether anybody who is there has sent an unroll."""
        return any(member.delivered for member in self.members.values())

    @property
    def counts(self) -> dict[str, int]:
        return dict(self._counts)

    # -- towards actors ------------------------------------------------------

    def publish(self, version: int, params: np.ndarray) -> None:
        self._latest = (version, params)
        for identity in list(self.members):
            self._give(identity)

    def _give(self, identity: bytes) -> None:
        """The newest parameters, unless earlier ones are still on their way: a slow actor skips versions."""
        member = self.members.get(identity)
        if (
            member is None
            or self._latest is None
            or member.sent is not None
            or member.seen == self._latest[0]
        ):
            return
        version, params = self._latest
        member.sent = member.seen = version
        self._send(identity, Frame.PARAMETERS.head, NUMBER.pack(version), params)

    def _send(self, identity: bytes, *frames: Any) -> None:
        """To an actor, if it is still there; `_probe` notices if it is not."""
        try:
            self._socket.send_multipart([identity, *frames], flags=self._zmq.NOBLOCK, copy=False)
        except self._zmq.ZMQError as error:
            if error.errno not in (self._zmq.EHOSTUNREACH, self._zmq.EAGAIN):
                raise
            if error.errno == self._zmq.EHOSTUNREACH:
                self._lose(identity)

    def _lose(self, identity: bytes) -> None:
        member = self.members.pop(identity, None)
        if member is None:
            return
        self._discard(member)
        name = "left_actors" if member.leaving else "lost_actors"
        self._counts[name] += 1
        log.warning(
            "actor %d (%s) %s, %s",
            member.number,
            member.who,
            "has left" if member.leaving else "was lost",
            self._remaining(),
        )

    def _discard(self, member: Member) -> None:
        """Discard its unrolls that were not acknowledged."""
        self._counts["discarded_unrolls"] += len(member.arrived)
        member.arrived.clear()

    def _remaining(self) -> str:
        count = len(self.members)
        return f"{count} actor{'s' if count != 1 else ''} connected"

    def _probe(self) -> None:
        if time.monotonic() - self._probed < PROBE_SECONDS:
            return
        self._probed = time.monotonic()
        for identity in list(self.members):
            self._send(identity, Frame.PROBE.head)

    # -- from actors ---------------------------------------------------------

    def serve(self) -> None:
        """Read all that has arrived. Bounded, since an actor's unacknowledged unrolls are."""
        while True:
            try:
                parts = self._socket.recv_multipart(flags=self._zmq.NOBLOCK, copy=False)
            except self._zmq.Again:
                break
            identity, frames = parts[0].bytes, [part.buffer for part in parts[1:]]
            try:
                self._read(identity, frames)
            except NONSENSE:
                self._refuse(identity, "it sent an invalid message")
                self._lose(identity)
        self._probe()

    def _read(self, identity: bytes, frames: list[Any]) -> None:
        kind = Frame(frames[0][0])
        member = self.members.get(identity)
        if member is None:
            if kind == Frame.HELLO:
                self._admit(identity, bytes(frames[1]))
            return  # else of one that is no longer a member
        if kind == Frame.UNROLL:
            (sequence,) = NUMBER.unpack(bytes(frames[1]))
            message, state = own(frames[2]), own(frames[3])
            expected = self.streams[member.number].length + len(member.arrived)
            if (message.size, state.size, sequence) != (self.sizes.message, self.sizes.state, expected):
                raise ValueError("not the next unroll of its stream")
            if len(member.arrived) == self.sizes.in_flight:
                raise ValueError("more than may be unacknowledged")
            member.arrived.append((message, state))
            member.delivered = True
            self._order.append(identity)
            self.last_event = self.last_unroll = time.monotonic()
        elif kind == Frame.GOT:
            member.sent = None
            self._give(identity)
        elif kind == Frame.NOTE:
            found = read_note(1 + member.number, frames[1:])
            if found.kind == Kind.SIGNAL:  # concerns the actor alone
                member.leaving = True
                self._release(identity)
            else:
                self._notes.append(found)

    def _admit(self, identity: bytes, greeting: bytes) -> None:
        hello = json.loads(greeting[:HELLO_BYTES])
        if not hmac.compare_digest(str(hello["token"]).encode(), self.admission.token.encode()):
            self._refuse(identity, "the token is not that of this run")
            return
        for name, value in self.admission.runs.items():
            if hello["runs"].get(name) != value:
                self._refuse(
                    identity, f"{name}: the learner has {value}, this actor has {hello['runs'].get(name)}"
                )
                return
        busy = {member.number for member in self.members.values()}
        number = next(n for n in range(len(busy) + 1) if n not in busy)
        if number >= self.admission.most:
            self._send(identity, Frame.FULL.head, NUMBER.pack(len(busy)))  # one of them may be dead already
            return
        member = self.members[identity] = Member(number, str(hello["who"]))
        self._counts["joined_actors"] += 1
        self.last_event = time.monotonic()
        stream = self.streams.setdefault(number, Stream())
        self._send(identity, Frame.WELCOME.head, NUMBER.pack(number))
        self._send(identity, *note(Kind.START, self._milliseconds(), stream.length, stream.state))
        self._give(identity)
        log.warning("actor %d (%s) has joined, %s", number, member.who, self._remaining())

    def _refuse(self, identity: bytes, reason: str) -> None:
        log.warning("an actor was refused: %s", reason)
        self._send(identity, Frame.REFUSED.head, reason.encode())

    def receive(self) -> ControlMessage | None:
        """The next control message."""
        return self._notes.popleft() if self._notes else None

    def send(self, *_: Any) -> None:
        raise AssertionError("actors of this transport have no rank")

    # -- unrolls -------------------------------------------------------------

    def drain(self, limit: int) -> list[Arrival]:
        self.serve()
        found: list[Arrival] = []
        while len(found) < limit and self._order:
            identity = self._order.popleft()
            member = self.members.get(identity)
            if member is None or not member.arrived:  # discarded meanwhile
                continue
            message, state = member.arrived.popleft()
            length = self.streams[member.number].length + 1
            self.streams[member.number] = Stream(length, state)
            self._counts["acknowledged_unrolls"] += 1
            found.append(Arrival(member.number, message))
            self._send(identity, Frame.ACKNOWLEDGED.head, NUMBER.pack(length))
            self._release(identity)
        return found

    def _release(self, identity: bytes) -> None:
        """Release an actor that is leaving once everything it sent has been acknowledged."""
        member = self.members.get(identity)
        if member is not None and member.leaving and not member.arrived:
            self._send(identity, *note(Kind.STOP, 0))
            self._lose(identity)

    def waiting(self) -> int:
        return len(self._order)

    # -- the end -------------------------------------------------------------

    def stop(self, finished: bool) -> None:
        """Release all actors. What they sent and was not acknowledged is discarded."""
        self.serve()
        for identity, member in list(self.members.items()):
            self._send(identity, *note(Kind.STOP, int(finished)))
            self._discard(member)
            self._counts["left_actors"] += identity in self.members
        self.members.clear()

    def close(self) -> None:
        self._context.destroy(linger=round(1000 * FAREWELL_SECONDS))
