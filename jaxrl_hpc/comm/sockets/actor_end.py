"""A volatile actor's end of its connection to the learner.

It connects once. When the connection breaks, the membership ends, and the process joins again as a new
member, with the state and the number that the learner then gives it.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_hpc.comm.hub import this_process
from jaxrl_hpc.comm.messaging import ControlMessage, Kind
from jaxrl_hpc.comm.sockets.wire import (
    NUMBER,
    Frame,
    LearnerGone,
    SocketSizes,
    configure,
    note,
    own,
    read_note,
)
from jaxrl_hpc.comm.waiting import Backoff
from jaxrl_hpc.errors import UserError

ATTEMPT_SECONDS = 3.0  # to reach a host
NEVER_AGAIN = 10**9  # milliseconds before a broken connection is made again


class LearnerPlace(NamedTuple):
    """The address of a learner, and the credentials to join it."""

    hosts: Sequence[str]
    port: int
    public_key: str
    token: str
    who: str


class SocketActor:
    """An `ActorSide` (comm/transport.py) and the control messages beside it. Calls raise LearnerGone.

    Args:
      place: of the learner.
      sizes: of buffers.
      runs: what this process runs, to be compared with the learner's.
      lost_seconds: of silence after which a connection counts as broken.
    """

    lost = 0

    def __init__(
        self, place: LearnerPlace, sizes: SocketSizes, runs: Mapping[str, Any], lost_seconds: float
    ) -> None:
        import zmq

        self._zmq, self._place, self.sizes = zmq, place, sizes
        self._lost_seconds = lost_seconds
        hello = {"token": place.token, "runs": dict(runs), "who": str(this_process(0))}
        self._hello = json.dumps(hello).encode()
        self.after = np.empty(sizes.state, np.uint8)  # the state after the unroll that is offered next
        self.number = -1
        self.begun = self.made = self.acknowledged = 0  # unrolls of the stream
        self._newest: tuple[int, np.ndarray] | None = None
        self._notes: deque[ControlMessage] = deque()
        self._context = zmq.Context()
        self._socket: Any = None
        self._monitor: Any = None
        self._ended = False  # the connection; what came before may still be read

    def join(self, deadline: float, stopped: Callable[[], bool]) -> None:
        """Become a member, with a START to receive; LearnerGone once `deadline` (time.monotonic) has passed
        without an answer, or if `stopped`. UserError if the learner refuses."""
        for host in self._place.hosts:
            if self._reach(host, deadline, stopped):
                return
        raise LearnerGone(f"{self._place.who} cannot be reached at {', '.join(self._place.hosts)}")

    def _reach(self, host: str, deadline: float, stopped: Callable[[], bool]) -> bool:
        zmq = self._zmq
        self._disconnect()
        self._ended = False
        self._socket = self._context.socket(zmq.DEALER)
        configure(self._socket, self._lost_seconds)
        # -1 would discard what came before the connection ended, and sending would then wait for another one
        self._socket.set(zmq.RECONNECT_IVL, NEVER_AGAIN)
        try:
            self._socket.set(zmq.CURVE_SERVERKEY, self._place.public_key.encode())
        except (zmq.ZMQError, UnicodeError):
            raise UserError(
                f"the public key of {self._place.who} is damaged: start the learner again"
            ) from None
        for name, key in zip((zmq.CURVE_PUBLICKEY, zmq.CURVE_SECRETKEY), zmq.curve_keypair(), strict=True):
            self._socket.set(name, key)
        self._monitor = self._socket.get_monitor_socket()
        try:
            self._socket.connect(f"tcp://{f'[{host}]' if ':' in host else host}:{self._place.port}")
        except (zmq.ZMQError, UnicodeError):  # a host may call itself by what is no name, such as node.(none)
            return False
        self._put(Frame.HELLO.head, self._hello)
        backoff, reached, began = Backoff(), False, time.monotonic()
        while not self._notes:  # START comes after WELCOME
            events = self._events()
            reached |= zmq.EVENT_HANDSHAKE_SUCCEEDED in events
            now = time.monotonic()
            if _ends(zmq) & events or (not reached and now - began > ATTEMPT_SECONDS):
                return False
            if now > deadline or stopped():  # it may be busy for long, but it is there
                raise LearnerGone(f"{self._place.who} does not answer")
            self._read()
            backoff.pause()
        return True

    def _events(self) -> set[int]:
        from zmq.utils.monitor import recv_monitor_message

        found = set()
        while self._monitor.poll(0):
            found.add(int(recv_monitor_message(self._monitor)["event"]))
        return found

    def _read(self) -> None:
        """Everything that has come; then whether the connection still exists."""
        while True:
            try:
                parts = self._socket.recv_multipart(flags=self._zmq.NOBLOCK, copy=False)
            except self._zmq.Again:
                break
            self._handle([part.buffer for part in parts])

    def _handle(self, frames: list[Any]) -> None:
        kind = Frame(frames[0][0])
        if kind == Frame.WELCOME:
            (self.number,) = NUMBER.unpack(bytes(frames[1]))
        elif kind == Frame.REFUSED:
            raise UserError(f"{self._place.who} refuses this actor: {bytes(frames[1]).decode()}")
        elif kind == Frame.FULL:
            (there,) = NUMBER.unpack(bytes(frames[1]))
            raise LearnerGone(f"{self._place.who} has {there} actors, as many as workflow.actors allows")
        elif kind == Frame.ACKNOWLEDGED:
            (self.acknowledged,) = NUMBER.unpack(bytes(frames[1]))
        elif kind == Frame.PARAMETERS:
            self._newest = NUMBER.unpack(bytes(frames[1]))[0], own(frames[2])
            self._put(Frame.GOT.head)
        elif kind == Frame.NOTE:
            found = read_note(0, frames[1:])
            if found.kind == Kind.START:
                self.begun = self.made = self.acknowledged = found.extra
            self._notes.append(found)

    def _put(self, *frames: Any) -> None:
        """Never waits; if the connection has ended, `_look` will find out and the message is not needed."""
        with contextlib.suppress(self._zmq.Again):
            self._socket.send_multipart(frames, flags=self._zmq.NOBLOCK, copy=True)

    def _look(self) -> None:
        self._read()
        if self._notes:  # the learner may have sent one before it ended
            return
        self._ended = self._ended or bool(_ends(self._zmq) & self._events())
        if self._ended:
            self._read()
            if not self._notes:
                raise LearnerGone(f"the connection to {self._place.who} has ended")

    # -- control -------------------------------------------------------------

    def receive(self) -> ControlMessage | None:
        self._look()
        return self._notes.popleft() if self._notes else None

    def send(
        self, rank: int, kind: Kind, number: int = 0, extra: int = 0, payload: np.ndarray | None = None
    ) -> None:
        del rank  # there is one learner
        self._put(*note(kind, number, extra, payload))

    # -- the transport -------------------------------------------------------

    def newest(self) -> tuple[int, np.ndarray] | None:
        self._look()
        found, self._newest = self._newest, None
        return found

    def room(self) -> bool:
        return self.made - self.acknowledged < self.sizes.in_flight

    def offer(self, message: np.ndarray) -> bool:
        """With the state `after` it. Takes copies of both."""
        if not self.room():
            return False
        self._put(Frame.UNROLL.head, NUMBER.pack(self.made), message, self.after)
        self.made += 1
        return True

    def _disconnect(self) -> None:
        if self._socket is not None:
            if self._monitor is not None:
                self._socket.disable_monitor()
                self._monitor.close(linger=0)
            self._socket.close(linger=0)
            self._socket = self._monitor = None

    def summary(self) -> str:
        """Unrolls made and acknowledged, as text."""
        made, kept = self.made - self.begun, self.acknowledged - self.begun
        return f"{made:,} unrolls made, {kept:,} of them acknowledged"

    def close(self) -> None:
        self._disconnect()
        self._context.destroy(linger=0)


def _ends(zmq: Any) -> set[int]:
    """Events after which a connection is not there."""
    return {
        zmq.EVENT_DISCONNECTED,
        zmq.EVENT_CLOSED,
        zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
        zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
        zmq.EVENT_HANDSHAKE_FAILED_AUTH,
        zmq.EVENT_MONITOR_STOPPED,
    }
