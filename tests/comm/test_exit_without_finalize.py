"""Processes that leave without MPI_Finalize wait for the others, but not for ever, and tell the launcher."""

import os
import socket
import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys
from jaxrl_hpc.comm import exit_without_finalize as ending

class Comm:
    def __init__(self, looks): self.looks = looks
    def Ibarrier(self): return self
    def Get_rank(self): return 3
    def Test(self):
        self.looks -= 1
        return self.looks < 0

def main():
    ending.remember(Comm(looks))
    atexit.register(print, "registered later")
    return status

looks, status = int(sys.argv[1]), int(sys.argv[2])
if looks == ALONE:  # else the limits are far away, however busy the machine is
    ending.FINISHED_SECONDS, ending.FAILED_SECONDS = 0.1, 0.05
"""
ENTRY = "sys.exit(ending.with_status(main))"
ALONE = 10**9  # looks at a barrier that nobody else comes to
PROGRAM = PROGRAM.replace("ALONE", str(ALONE))


@pytest.mark.parametrize(
    ("looks", "status", "left", "words"),
    [
        (2, 0, 0, ""),
        (2, 7, 7, ""),
        (ALONE, 0, 2, "rank 3 has finished and waited 0.1 s for the others; it exits.\n"),
        (ALONE, 7, 7, "rank 3 has finished and waited 0.05 s for the others; it exits.\n"),
    ],
)
def test_waits_for_others_within_limits(looks, status, left, words):
    command = [sys.executable, "-c", PROGRAM + ENTRY, str(looks), str(status)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (left, words)
    assert done.stdout == "registered later\n"


@pytest.mark.parametrize(
    ("entry", "status"),
    [
        ("ending.with_status(lambda: main() and sys.exit(5))", 5),
        ("ending.with_status(lambda: main() and sys.exit('a sentence'))", 1),
        ("ending.with_status(lambda: main() and 1 / 0)", 1),
        ("main(); 1 / 0", 1),  # a script of one's own
        ("main()", 0),
    ],
)
def test_the_status_of_every_kind_of_end_is_kept(entry, status):
    done = subprocess.run([sys.executable, "-c", PROGRAM + entry, "2", "7"], capture_output=True, text=True)
    assert done.returncode == status, done.stderr


@pytest.mark.parametrize("status", [0, 7])
def test_the_launcher_is_told_before_the_process_exits(status):
    """PMI-1: `finalize` is answered with `finalize_ack`; without it launchers end all ranks of the job."""
    launcher, rank = socket.socketpair()
    with launcher, rank:
        command = [sys.executable, "-c", PROGRAM + ENTRY, "2", str(status)]
        environment = os.environ | {"PMI_FD": str(rank.fileno())}
        with subprocess.Popen(command, pass_fds=[rank.fileno()], env=environment) as process:
            rank.close()
            assert launcher.recv(100) == b"cmd=finalize\n"
            assert process.poll() is None, "it waits for the answer"
            launcher.sendall(b"cmd=finalize_ack rc=0\n")
            assert process.wait() == status
