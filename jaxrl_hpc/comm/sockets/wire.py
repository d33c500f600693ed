"""Messages between a learner and volatile actors: frames of ZeroMQ, numbers, JSON and raw buffers.

    actor                                      learner
    HELLO     token, what it runs         →
                                          ←    WELCOME its number, or REFUSED, or FULL
    UNROLL    sequence, message, state    →
                                          ←    ACKNOWLEDGED unrolls so far
                                          ←    PARAMETERS version, buffer
    GOT       the last parameters         →
    NOTE      control message             ⇄    NOTE
                                          ←    PROBE nothing: whether the connection still exists

Everything is encrypted with the learner's public key (CurveZMQ), which is in the run's address file beside
the token: without that file no connection is possible. Nothing received is unpickled.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from jaxrl_hpc.comm.buffers import aligned
from jaxrl_hpc.comm.messaging import ControlMessage, Kind
from jaxrl_hpc.errors import UserError

NUMBER = struct.Struct("<q")
NUMBERS = struct.Struct("<qqq")  # kind, number and extra of a control message
HELLO_BYTES = 1 << 16  # largest greeting that is read


class Frame(IntEnum):
    """The first byte of every message."""

    HELLO = 0
    WELCOME = 1
    REFUSED = 2
    UNROLL = 3
    ACKNOWLEDGED = 4
    PARAMETERS = 5
    GOT = 6
    NOTE = 7
    PROBE = 8
    FULL = 9

    @property
    def head(self) -> bytes:
        return bytes([self])


class SocketSizes(NamedTuple):
    """Sizes of a run's buffers, the same on both ends."""

    message: int  # bytes of an unroll with its header
    params: int  # bytes of an actor's parameters
    state: int  # bytes of an actor's state after an unroll
    in_flight: int  # unrolls of one actor that may be unacknowledged before it has to wait


class LearnerGone(Exception):
    """There is no connection to a learner, or not for this process at present; it may try again."""


def note(
    kind: Kind, number: int = 0, extra: int = 0, payload: np.ndarray | None = None
) -> tuple[bytes, bytes, Any]:
    """The frames of a control message."""
    return Frame.NOTE.head, NUMBERS.pack(kind, number, extra), b"" if payload is None else payload


def read_note(sender: int, frames: list[Any]) -> ControlMessage:
    """The control message in the frames behind the first."""
    kind, number, extra = NUMBERS.unpack(bytes(frames[0]))
    return ControlMessage(sender, Kind(kind), number, extra, own(frames[1]))


def own(frame: Any) -> np.ndarray:
    """A frame's bytes as an aligned array of our own."""
    data = np.frombuffer(frame, np.uint8)
    buffer = aligned(data.size)
    buffer[:] = data
    return buffer


def configure(socket: Any, lost_seconds: float) -> None:
    """Options of both ends: the I/O threads of ZeroMQ notice a peer that is silent for too long,
    whatever the processes themselves are doing."""
    import zmq

    if not zmq.has("curve"):
        raise UserError("workflow elastic: this pyzmq has no encryption (CURVE); install pyzmq's own wheel")
    every = max(100, round(lost_seconds * 250))
    socket.set(zmq.HEARTBEAT_IVL, every)
    socket.set(zmq.HEARTBEAT_TIMEOUT, round(lost_seconds * 1000))
    socket.set(zmq.HEARTBEAT_TTL, min(round(lost_seconds * 1000), 6_500_000))
    socket.set(zmq.LINGER, 0)  # a process that fails ends at once
    socket.set(zmq.SNDHWM, 0)  # both ends bound what they send themselves
    socket.set(zmq.RCVHWM, 0)
