"""Connects the processes of a job over TCP for small messages, and detects at once when one dies.

    process 0:  hub ──┬── connection of process 0
                      ├── connection of process 1
                      └── connection of process N - 1

Process 0 listens; every process, including process 0, connects and identifies itself. Once all are connected,
there is one collective operation, `gather`, from which all others are built (`hub_ranks.py`). The operating
system closes the connection of a process that ends for any reason, so the hub detects at once which one died
and notifies the others; if process 0 dies, all see their connection closed. A host that vanishes without
closing its connections is detected by the watchdog.

Pure Python. Data from unauthenticated connections is never unpickled.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from jaxrl_hpc.errors import UserError

START_SECONDS = 120.0  # until all processes must be connected
RETRY_SECONDS = 0.1  # between attempts to connect
ATTEMPT_SECONDS = 3.0  # for one of them
SEND_SECONDS = 30.0  # for a receiver that does not read
LEAVE_SECONDS = 60.0  # process 0 waits this long at its end for the others to leave
MAX_HELLO = 4096  # largest message from an unauthenticated process
EXIT_DIED = 76  # as the watchdog: the newest checkpoint can be resumed
HEAD = struct.Struct("!IB")  # length of what follows, kind
HELLO, WELCOME, REFUSED, GATHER, FAILED, ABORT, GONE, BYE = range(8)


class Member(NamedTuple):
    """A process of the job."""

    process: int
    pid: int
    host: str
    node: str  # the same for all processes on one machine

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def this_process(process: int) -> Member:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            node = file.read().strip()
    except OSError:
        node = socket.gethostname()
    return Member(process, os.getpid(), socket.gethostname(), node)


class Peer:
    """The hub's end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.received = bytearray()
        self.member: Member | None = None
        self.gathering: bytes | None = None
        self.failed = self.left = False

    def frames(self, data: bytes) -> list[tuple[int, bytes]]:
        """Complete messages received so far."""
        self.received += data
        found = []
        while len(self.received) >= HEAD.size:
            length, kind = HEAD.unpack_from(self.received)
            if self.member is None and length > MAX_HELLO:
                raise ValueError("not one of ours")
            if len(self.received) < HEAD.size + length:
                break
            found.append((kind, bytes(self.received[HEAD.size : HEAD.size + length])))
            del self.received[: HEAD.size + length]
        return found


class Hub(threading.Thread):
    """Runs in process 0.

    Args:
      listener: a bound socket that listens.
      processes: how many are expected.
      token: shared secret of the processes of this job.
      seconds: until all must be connected.
    """

    def __init__(self, listener: socket.socket, processes: int, token: str, seconds: float) -> None:
        super().__init__(daemon=True, name="hub")
        self._listener, self._processes, self._token = listener, processes, token
        self._deadline, self._seconds = time.monotonic() + seconds, seconds
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._peers: dict[int, Peer] = {}  # by number of the process
        self._complete = self._over = False

    def run(self) -> None:
        while not self._over:
            for key, _ in self._selector.select(timeout=0.2 if not self._complete else None):
                if key.fileobj is self._listener:
                    connection, _ = self._listener.accept()
                    connection.settimeout(SEND_SECONDS)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._selector.register(connection, selectors.EVENT_READ, Peer(connection))
                else:
                    self._read(key.data)
            if not self._complete and time.monotonic() > self._deadline:
                self._give_up()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _read(self, peer: Peer) -> None:
        try:
            data = peer.socket.recv(1 << 16)
            frames = peer.frames(data)
        except (OSError, ValueError):
            data, frames = b"", []
        for kind, payload in frames:
            self._handle(peer, kind, payload)
        if not data:
            self._selector.unregister(peer.socket)
            peer.socket.close()
            self._closed(peer)

    def _closed(self, peer: Peer) -> None:
        if peer.member is None or self._peers.get(peer.member.process) is not peer:
            return  # unauthenticated, or refused
        if not self._complete:  # it may be started again
            del self._peers[peer.member.process]
        elif not peer.left:
            peer.left = True
            self._tell(GONE, json.dumps([peer.member.process, "has died"]).encode())
        self._over |= self._complete and all(each.left for each in self._peers.values())

    def _handle(self, peer: Peer, kind: int, payload: bytes) -> None:
        if peer.member is None:
            self._welcome(peer, payload if kind == HELLO else b"{}")
        elif kind == GATHER:
            peer.gathering = payload
            self._gather()
        elif kind == FAILED:
            peer.failed = True
            if all(each.failed for each in self._peers.values()):
                self._tell(FAILED)
        elif kind == ABORT:
            peer.left = True
            self._tell(ABORT, payload)
            self._over = True
        elif kind == BYE:
            peer.left = True
            self._gather()

    def _welcome(self, peer: Peer, payload: bytes) -> None:
        try:
            introduction = json.loads(payload)
            member, known, count = (
                Member(*introduction["member"]),
                introduction["token"] == self._token,
                introduction["processes"],
            )
        except (KeyError, TypeError, ValueError, RecursionError):
            known = False
        if not known:
            self._send(peer, REFUSED, b"")  # of another job: it tries elsewhere
            return
        other = self._peers.get(member.process)
        if count != self._processes or not 0 <= member.process < self._processes:
            text = f"number {member.process} of {count}, but process 0 expects {self._processes} processes"
            self._send(peer, REFUSED, f"this process was started as {text}".encode())
        elif other is not None:
            text = f"number {member.process} is already connected: {other.member}"
            self._send(peer, REFUSED, text.encode())
        else:
            peer.member = member
            self._peers[member.process] = peer
            if len(self._peers) == self._processes:
                self._complete = True
                members = [self._peers[i].member for i in range(self._processes)]
                self._tell(WELCOME, json.dumps(members).encode())

    def _give_up(self) -> None:
        missing = [i for i in range(self._processes) if i not in self._peers]
        which = ", ".join(map(str, missing[:8])) + (" …" if len(missing) > 8 else "")
        plural = "es" if len(missing) > 1 else ""
        here = f"port {self._listener.getsockname()[1]} of {socket.gethostname()}"
        text = (
            f"process{plural} {which} of {self._processes} did not connect to {here} within "
            f"{self._seconds:g} s: check the output of the missing ones, and whether their hosts can reach it"
        )
        self._tell(REFUSED, text.encode())
        self._over = True

    def _gather(self) -> None:
        waiting = [peer for peer in self._peers.values() if peer.gathering is not None]
        left = [peer for peer in self._peers.values() if peer.left and peer.gathering is None]
        if waiting and left and left[0].member:
            self._tell(GONE, json.dumps([left[0].member.process, "has ended"]).encode())
        elif len(waiting) == self._processes:
            parts = [self._peers[i].gathering or b"" for i in range(self._processes)]
            lengths = struct.pack(f"!{self._processes}I", *map(len, parts))
            for peer in self._peers.values():
                peer.gathering = None
            self._tell(GATHER, lengths + b"".join(parts))

    def _tell(self, kind: int, payload: bytes = b"") -> None:
        """Process 0 ends last: the hub ends with it, which the others would take for a crash."""
        for _, peer in sorted(self._peers.items(), reverse=True):
            if not peer.left:
                self._send(peer, kind, payload)

    @staticmethod
    def _send(peer: Peer, kind: int, payload: bytes) -> None:
        with contextlib.suppress(OSError):  # its end is seen by reading
            peer.socket.sendall(HEAD.pack(len(payload), kind) + payload)


class Connection:
    """This process's connection to the hub.

    `on_gone` is called with (process, what happened to it), by a thread of this class, when a process is
    gone; it does not return.
    """

    def __init__(self, stream: socket.socket, process: int, members: Sequence[Member]) -> None:
        self.process, self.members = process, tuple(members)
        self.hub_host: str = stream.getpeername()[0]  # as this process reaches it
        self.own_host: str = stream.getsockname()[0]  # as the hub's host reaches this process
        self.on_gone: Callable[[int, str], None] = self.say_and_exit
        self._stream, self._sending = stream, threading.Lock()
        self._gathered: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._all_failed = threading.Event()
        self._closing = False
        self.hub: Hub | None = None  # in process 0
        threading.Thread(target=self._listen, daemon=True, name="hub connection").start()

    @property
    def processes(self) -> int:
        return len(self.members)

    def gather(self, payload: bytes) -> list[bytes]:
        """The values of all processes, in order of their numbers; collective."""
        self._send(GATHER, payload)
        answer = self._gathered.get()
        count = self.processes
        lengths = struct.unpack_from(f"!{count}I", answer)
        parts, begin = [], 4 * count
        for length in lengths:
            parts.append(answer[begin : begin + length])
            begin += length
        return parts

    def all_fail(self, seconds: float) -> bool:
        """Report that this process fails -> whether all others report the same within that time."""
        self._send(FAILED)
        return self._all_failed.wait(seconds)

    def abort(self, status: int) -> None:
        """Every process exits at once with this status."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._send(ABORT, str(status).encode())
        if self.hub is not None:
            self.hub.join(LEAVE_SECONDS)  # until the others are notified

    def close(self) -> None:
        """Leave; nothing is expected of this process any more."""
        if not self._closing:
            self._closing = True
            with contextlib.suppress(OSError):
                self._send(BYE)
                self._stream.shutdown(socket.SHUT_WR)  # the hub need not wait for the end of this process
            if self.hub is not None:
                self.hub.join(LEAVE_SECONDS)

    def say_and_exit(self, process: int, what: str) -> None:
        print(f"process {process} ({self.members[process]}) {what}; the job ends here", file=sys.stderr)
        sys.stderr.flush()
        os._exit(EXIT_DIED)

    def _send(self, kind: int, payload: bytes = b"") -> None:
        with self._sending:
            self._stream.sendall(HEAD.pack(len(payload), kind) + payload)

    def _listen(self) -> None:
        while True:
            try:
                kind, payload = receive(self._stream)
            except (OSError, EOFError):
                if not self._closing:
                    self.on_gone(0, "has died")
                return
            if kind == GATHER:
                self._gathered.put(payload)
            elif kind == FAILED:
                self._all_failed.set()
            elif kind == ABORT:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(int(payload))
            elif kind == GONE and not self._closing:
                self.on_gone(*json.loads(payload))


def receive(stream: socket.socket) -> tuple[int, bytes]:
    """One message."""
    length, kind = HEAD.unpack(_exactly(stream, HEAD.size))
    return kind, _exactly(stream, length)


def _exactly(stream: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = stream.recv(min(1 << 20, size - len(data)))
        if not more:
            raise EOFError
        data += more
    return bytes(data)


def listen(ports: Sequence[int]) -> socket.socket:
    """At the first of these ports that is free; 0: any."""
    for port in ports:
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=4096)
        except OSError as error:
            if error.errno in (97, 99):  # no IPv6 here
                with contextlib.suppress(OSError):
                    return socket.create_server(("", port), backlog=4096)
    which = " and ".join(map(str, ports)) if len(ports) < 3 else f"{ports[0]} and {len(ports) - 1} others"
    raise UserError(f"port {which} on {socket.gethostname()}: in use already; give another one")


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """A port reserved for a process that will `listen` on it. It is bound without listening; the listener
    shares the address (SO_REUSEADDR).
    """
    with socket.socket(socket.AF_INET) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        yield held.getsockname()[1]


def connect(
    hosts: Sequence[str],
    ports: Sequence[int],
    process: int,
    processes: int,
    token: str = "",
    seconds: float = START_SECONDS,
    listener: socket.socket | None = None,
) -> Connection:
    """Find the hub at one of these hosts and ports, and wait until all processes have found it.

    Args:
      listener: in process 0, which also starts the hub.
    """
    hub = None
    if listener is not None:
        hosts, ports = ["127.0.0.1"], [listener.getsockname()[1]]
        hub = Hub(listener, processes, token, seconds)
        hub.start()
    deadline = time.monotonic() + seconds
    hello = {"member": this_process(process), "token": token, "processes": processes}
    message = json.dumps(hello).encode()
    problem = "no answer"
    while True:
        for host in hosts:
            for port in ports:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise UserError(
                        f"process {process} of {processes} cannot reach process 0 at {hosts[0]}:{ports[0]} "
                        f"within {seconds:g} s ({problem}): check whether it runs there, and whether this "
                        "host may reach that port"
                    )
                try:
                    stream = socket.create_connection((host, port), min(ATTEMPT_SECONDS, left))
                    # the hub reports processes that do not connect in time
                    stream.settimeout(left + ATTEMPT_SECONDS)
                    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                    stream.sendall(HEAD.pack(len(message), HELLO) + message)
                    kind, payload = receive(stream)
                except (OSError, EOFError, struct.error) as error:
                    problem = str(error) or type(error).__name__
                    continue
                if kind == WELCOME:
                    stream.settimeout(None)
                    members: list[Any] = json.loads(payload)
                    found = Connection(stream, process, [Member(*member) for member in members])
                    found.hub = hub
                    return found
                stream.close()
                if kind == REFUSED and payload:
                    raise UserError(payload.decode())
                problem = "another job answers there"
        time.sleep(RETRY_SECONDS)
