"""JAX's distributed runtime: the devices of all processes in one program (`jax.distributed`).

`jax.distributed.initialize` is not enough here, for three reasons:

- It runs JAX's coordination service inside process 0. When that process dies, the clients in all others
  abort in C++ before the dead process can be named. So the service runs in a separate small process, which
  outlives process 0 briefly.
- It connects processes on CPUs (gloo) by host name, which many hosts resolve to 127.0.0.1. The address by
  which a process has reached process 0 is known to work.
- It installs a handler of SIGTERM, which belongs to the run (`runtime/signals.py`).

Only this file uses private parts of JAX for that; tests/mpi/test_layouts.py tests it with real processes.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import jax
import psutil

from jaxrl_hpc.comm import hub
from jaxrl_hpc.comm.ranks import Ranks
from jaxrl_hpc.errors import UserError

LEAST_HEARTBEAT, LONGEST_HEARTBEAT = 60, 7 * 86_400  # seconds
OUTLIVE_SECONDS = 15  # how long the service outlives a dead process 0: the others must be notified first
SHUTDOWN_SECONDS = 60
ATTEMPTS = 3  # a port that was free a moment ago may be taken
NOISE = (b"[Gloo] Rank", b"connected peer ranks")  # in pieces where devices print at the same time
LOOPBACK = "127.0.0.1"
WITHOUT_PROXY = "no_grpc_proxy"  # gRPC's own variable

# Run by a bare interpreter: no jax, only its library. A line on stdin means that all have left.
SERVICE = f"""
import sys, time
from jaxlib import _jax
port, processes, heartbeat = map(int, sys.argv[1:])
try:
    service = _jax.get_distributed_runtime_service(
        f"[::]:{{port}}", processes, heartbeat_timeout=heartbeat, shutdown_timeout={SHUTDOWN_SECONDS}
    )
except Exception as error:
    print(error, flush=True)
    sys.exit(1)
print("ready", flush=True)
if not sys.stdin.readline():
    time.sleep({OUTLIVE_SECONDS})
service.shutdown()
"""


def started() -> bool:
    """Whether the processes of the job are connected."""
    return jax.distributed.is_initialized()


def heartbeat_seconds(deadline: float) -> int:
    """JAX's own time limit for a silent process: later than the watchdog's, which says more."""
    return int(min(LONGEST_HEARTBEAT, max(LEAST_HEARTBEAT, 3 * deadline))) if deadline else LONGEST_HEARTBEAT


def start(ranks: Ranks, deadline: float, seconds: float = hub.START_SECONDS) -> None:
    """Connect all processes of the job; to be called by all of them, before JAX looks at its devices.

    Args:
      deadline: seconds without progress after which the watchdog ends the job; 0: never.
      seconds: for each step of starting.
    """
    from jax._src import distributed, xla_bridge
    from jax._src.lib import _jax

    if xla_bridge.backends_are_initialized():
        raise UserError(
            "workflow.engine: JAX was in use before its processes were connected; start training in new "
            "processes, before anything is computed, or set workflow.engine=mpi"
        )
    if ranks.connection is None:
        ranks.attach(_connect_beside_mpi(ranks, seconds))
    connection, heartbeat = ranks.connection, heartbeat_seconds(deadline)
    assert connection is not None
    port = ranks.first_does(lambda: _start_service(ranks.size, heartbeat))
    _bypass_proxies(connection.hub_host)
    client = _jax.get_distributed_runtime_client(
        f"{_bracketed(connection.hub_host)}:{port}",
        ranks.rank,
        init_timeout=int(seconds),
        shutdown_timeout=SHUTDOWN_SECONDS,
        heartbeat_timeout=heartbeat,
        use_compression=True,
    )

    def connect() -> None:
        try:
            client.connect()
        except Exception as error:
            text = str(error).splitlines()[0]
            raise UserError(
                f"JAX's service on {connection.hub_host}:{port} does not answer ({text})"
            ) from None

    ranks.all_succeed(connect)
    state = distributed.global_state
    state.client, state.process_id, state.num_processes = client, ranks.rank, ranks.size
    hosts = ranks.gather((connection.own_host, connection.hub_host))
    gloo = functools.partial(_jax.make_gloo_tcp_collectives, client, hostname=reachable(ranks.rank, hosts))
    xla_bridge.register_backend_factory(
        "cpu", lambda: xla_bridge.make_cpu_client(gloo()), priority=0, fail_quietly=False
    )
    # after JAX's own clean-up, which leaves the service, in reverse order: the connection closes last
    atexit.unregister(connection.close)
    atexit.register(_leave, ranks)


def _leave(ranks: Ranks) -> None:
    from jax._src import distributed

    assert ranks.connection is not None
    with contextlib.suppress(Exception):  # too late to handle
        distributed.global_state.shutdown()
    ranks.connection.close()
    if _service is not None and _service.stdin is not None:
        with contextlib.suppress(OSError):
            _service.stdin.write("all have left\n")
            _service.stdin.close()


def _connect_beside_mpi(ranks: Ranks, seconds: float) -> hub.Connection:
    """Process 0's addresses and a secret, by MPI."""
    listener = hub.listen([0]) if ranks.first else None
    port = listener.getsockname()[1] if listener else 0
    hosts, port, token = ranks.share((own_addresses(), port, secrets.token_hex(8)))
    if ranks.local_size == ranks.size:
        hosts = [LOOPBACK, *hosts]
    return ranks.all_succeed(
        lambda: hub.connect(hosts, [port], ranks.rank, ranks.size, token, seconds, listener)
    )


def reachable(process: int, hosts: list[tuple[str, str]]) -> str:
    """The address by which others reach a process.

    Args:
      hosts: of every process, its own address and the hub's, as its connection to the hub has them.
    """
    own, _ = hosts[process]
    if not own.startswith("127."):
        return own
    # it is on the hub's host, so the address by which others reach that host is its own too
    return next((hub_host for _, hub_host in hosts if not hub_host.startswith("127.")), own)


def own_addresses() -> list[str]:
    """Addresses by which other hosts may reach this one, the likeliest first."""
    interfaces = psutil.net_if_addrs()
    states = psutil.net_if_stats()
    up = [name for name in interfaces if name in states and states[name].isup]
    found = [a.address for name in up for a in interfaces[name] if a.family == socket.AF_INET]
    return [*dict.fromkeys(address for address in found if not address.startswith("127.")), LOOPBACK]


_service: subprocess.Popen[str] | None = None


def _start_service(processes: int, heartbeat: int) -> int:
    """JAX's coordination service in a process of its own -> its port."""
    global _service
    problem = ""
    for _ in range(ATTEMPTS):
        with hub.listen([0]) as free:
            port: int = free.getsockname()[1]
        _service = subprocess.Popen(
            [sys.executable, "-c", SERVICE, str(port), str(processes), str(heartbeat)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # else a reader of our output would wait for the service to end
            text=True,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        assert _service.stdout is not None
        problem = _service.stdout.readline().strip()
        if problem == "ready":
            return port
        _service.wait()
    raise UserError(f"JAX's coordination service does not start: {problem or 'no message'}")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _bypass_proxies(host: str) -> None:
    """The service is on this cluster: gRPC must not look for it by way of a web proxy."""
    known = [os.environ.get(name, "") for name in (WITHOUT_PROXY, "no_proxy", "NO_PROXY")]
    os.environ[WITHOUT_PROXY] = ",".join([next(filter(None, known), host), host])


@contextlib.contextmanager
def gloo_lines_hidden() -> Iterator[None]:
    """Drops the line that gloo prints per device when programs first communicate."""
    if jax.process_count() == 1:
        yield
        return
    sys.stdout.flush()
    saved = os.dup(1)
    reading, writing = os.pipe()
    os.dup2(writing, 1)
    os.close(writing)

    def copy() -> None:
        with os.fdopen(reading, "rb") as lines:
            for line in lines:
                if not any(words in line for words in NOISE):
                    os.write(saved, line)

    copying = threading.Thread(target=copy, daemon=True)
    copying.start()
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)  # closes the pipe, which ends the thread
        copying.join()
        os.close(saved)
