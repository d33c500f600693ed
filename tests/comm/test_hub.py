"""Processes that find each other without MPI: who is missing, who died, and what they tell each other."""

import json
import pickle
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from jaxrl_hpc.comm import hub
from jaxrl_hpc.comm.hub_ranks import HubRanks, loads
from jaxrl_hpc.comm.launch import Launch, by_hand, first_host, slurm_step
from jaxrl_hpc.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
PROCESS = """
import sys, time
from jaxrl_hpc.comm.launch import Launch
port, process, processes, seconds = map(int, sys.argv[1:])
ranks = Launch(process, processes, "127.0.0.1", (port,), "", seconds).connect()
total = ranks.everyone(process + 1).sum()
print("together", total, ranks.share({"from": ranks.rank}), flush=True)
if sys.stdin.readline() == "abort\\n":  # until told to go
    ranks.abort(9)
"""


@pytest.fixture
def ports():
    with hub.reserved_port() as first, hub.reserved_port() as second:
        yield first, second


@pytest.fixture
def port(ports):
    return ports[0]


def start(port, process, processes, seconds=600):
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS, *map(str, (port, process, processes, seconds))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
    )


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_is_named_and_all_others_end(victim, port):
    processes = [start(port, i, 3) for i in range(3)]
    for process in processes:
        assert process.stdout.readline().split()[:2] == ["together", "6"]
    processes[victim].send_signal(signal.SIGKILL)
    for number, process in enumerate(processes):
        with process:  # its stdin stays open until it has ended
            output = process.stdout.read()
        if number != victim:
            assert process.returncode == hub.EXIT_DIED
            assert f"process {victim} (process {processes[victim].pid} on" in output, output
            assert "has died; the job ends here" in output


@pytest.mark.parametrize("caller", [0, 2])
def test_all_end_with_the_status_of_the_one_that_ends_the_job(caller, port):
    processes = [start(port, i, 3) for i in range(3)]
    for process in processes:
        process.stdout.readline()
    processes[caller].stdin.write("abort\n")
    processes[caller].stdin.flush()
    for process in processes:
        with process:
            output = process.stdout.read()
        assert (process.returncode, output) == (9, "")


def test_all_leave_in_peace(port):
    processes = [start(port, i, 2) for i in range(2)]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        output, _ = process.communicate()
        assert process.returncode == 0 and "{'from': 0}" in output, output


def connect_in_threads(count, launches):
    """What each of these launches led to: ranks, or the error."""
    found = {}

    def run(i, launch):
        try:
            found[i] = launch.connect()
        except UserError as error:
            found[i] = str(error)

    threads = [threading.Thread(target=run, args=item) for item in enumerate(launches)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [found[i] for i in range(count)]


def test_missing_processes_are_named(port):
    launches = [Launch(i, 4, "127.0.0.1", (port,), "", 2.0) for i in (0, 2)]
    for error in connect_in_threads(2, launches):
        assert "processes 1, 3 of 4 did not connect" in error and f"port {port}" in error


def test_nobody_at_the_coordinator(port):
    with pytest.raises(UserError, match=r"process 1 of 2 cannot reach process 0 at 127\.0\.0\.1:"):
        Launch(1, 2, "127.0.0.1", (port,), "", 0.5).connect()


def test_numbers_that_do_not_fit_are_refused(port):
    launches = [Launch(0, 2, "127.0.0.1", (port,), "", 3.0), Launch(1, 3, "127.0.0.1", (port,), "", 3.0)]
    first, second = connect_in_threads(2, launches)
    assert "process 1 of 2 did not connect" in first
    assert "number 1 of 3, but process 0 expects 2" in second


def test_two_steps_with_the_same_ports_do_not_meet(ports):
    """The second one's process 0 takes the next port, and its process 1 is sent on by the first."""
    launches = [Launch(i, 2, "127.0.0.1", ports, token, 60.0) for token in ("a", "b") for i in (0, 1)]
    found = connect_in_threads(4, launches)
    assert all(isinstance(ranks, HubRanks) and ranks.size == 2 for ranks in found), found
    assert found[0].connection.hub.name == "hub"
    threads = [threading.Thread(target=ranks.connection.close) for ranks in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "who has left is not waited for"


@pytest.mark.parametrize("greeting", [b"", b"[]", b"\xff", b'{"token": "t", "member": 1}', b"[" * 4000])
def test_greetings_that_make_no_sense_are_refused(greeting, port):
    listener = hub.listen([port])
    served = hub.Hub(listener, 1, "t", 600)
    served.start()
    own = json.dumps({"token": "t", "processes": 1, "member": hub.this_process(0)}).encode()
    for message, answer in ((greeting, hub.REFUSED), (own, hub.WELCOME)):
        with socket.create_connection(("127.0.0.1", port), 60) as stream:
            stream.sendall(hub.HEAD.pack(len(message), hub.HELLO) + message)
            assert hub.receive(stream)[0] == answer
    served.join(60)
    assert not served.is_alive()


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} on .*: in use already"):
            hub.listen([port])


def test_code_from_others_is_refused():
    assert loads(pickle.dumps({"path": Path("/tmp"), "n": 3})) == {"path": Path("/tmp"), "n": 3}
    with pytest.raises(pickle.UnpicklingError, match="is not expected"):
        loads(pickle.dumps(subprocess.Popen))


@pytest.mark.parametrize(
    "given, message",
    [
        (("host:1", 2, None), "--process: give --coordinator, --processes and --process together"),
        (("host", 2, 0), "--coordinator: should be HOST:PORT"),
        (("host:1", 2, 2), "--process: should be from 0 to 1"),
    ],
)
def test_mistakes_on_the_command_line(given, message):
    with pytest.raises(UserError, match=message):
        by_hand(*given)


def test_slurm_says_everything():
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"}
    launch = slurm_step(step | {"SLURM_STEP_NODELIST": "node[003-005],login"})
    assert (launch.process, launch.processes, launch.host) == (2, 4, "node003")
    other = slurm_step(step | {"SLURM_STEP_ID": "1", "SLURM_STEP_NODELIST": "node003"})
    assert other.token != launch.token and other.ports[0] != launch.ports[0]
    elsewhere = slurm_step(step | {"SLURM_STEP_NODELIST": "node003", "SLURM_CLUSTER_NAME": "other"})
    assert elsewhere.token != launch.token, "a cluster that counts its jobs on the same host"
    assert slurm_step({k: v for k, v in step.items() if k != "SLURM_STEP_ID"}) is None  # a batch script
    assert slurm_step(step | {"SLURM_STEP_NUM_TASKS": "1"}) is None


@pytest.mark.parametrize(
    "nodes, first",
    [("a1", "a1"), ("a1,b2", "a1"), ("a[01-04],b", "a01"), ("a[7,9]", "a7"), ("r[1-2]n", "r1n")],
)
def test_first_host_of_a_list(nodes, first):
    assert first_host(nodes) == first
