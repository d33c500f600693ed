"""Start a job of several ranks, and start it again when a rank dies.

    python scripts/mpi_restart.py -n 4 jaxrl-hpc train workflows/cartpole_ppo_sharded --run-dir runs/big
    python scripts/mpi_restart.py --launcher "srun --mpi=pmi2 -K1 -n 4" jaxrl-hpc train … --run-dir runs/big

--resume is added, so that each start continues from the newest good checkpoint, and the end is the same, bit
for bit, as if nothing had happened. When the job breaks, the ranks that broke are named. A job that finished,
one stopped by a signal after saving (exit code 75) and a mistake in the input (2) are not started again.
Each rank runs under a guard (this script with --guard), which says when its process is killed: MPICH's
mpiexec ends the others then, and names any of them. What a killed job left in /dev/shm is removed before the
next start, on every node. Needs no package but Python itself, so that it works on login nodes.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

sys.path.append(str(Path(__file__).resolve().parents[1]))  # of this module only Python itself is needed
from jaxrl_hpc.comm.leftovers import describe, remove_leftovers

SAVED = 75
FINAL = {0: "finished", 2: "wrong input", SAVED: "stopped by a signal after saving"}
# how launchers report a process that died: MPICH's mpiexec by PID, Open MPI's and srun by rank
BY_PID = re.compile(r"PID (\d+) RUNNING AT (\S+)")
BY_ITSELF = re.compile(r"watchdog of rank \d+ [^;\n]*|rank \d+ of \d+ failed|error: rank \d+ of \d+: .*")
BY_GUARD = re.compile(r"guard: process (\d+) on (\S+) died by signal \d+ at ([\d.]+)")
BY_RANK = re.compile(r"process rank (\d+) with PID|task (\d+): (?:Killed|Exited|Aborted)")


def ranks_by_pid(run_dir: Path) -> dict[str, dict]:
    """What the ranks last wrote about themselves, by process number."""
    found = {}
    for path in (run_dir / "ranks").glob("*.json"):
        try:
            record = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        found[str(record["pid"])] = record
    return found


def blame(output: str, run_dir: Path) -> list[str]:
    """Sentences that name the ranks which broke: a rank's own report, else the launcher's."""
    said = [match[0].strip() for match in BY_ITSELF.finditer(output)]
    if said:
        return list(dict.fromkeys(said))
    known = ranks_by_pid(run_dir)
    sentences = []
    guarded = sorted(BY_GUARD.findall(output), key=lambda found: float(found[2]))[:1]  # then others are ended
    for pid, host in [found[:2] for found in guarded] or dict.fromkeys(BY_PID.findall(output)):
        record = known.get(pid)
        who = f"rank {record['rank']}" if record else "a rank that had not begun"
        when = f" while {record['phase']}, chunk {record['chunk']}" if record else ""
        sentences.append(f"{who} (process {pid} on {host}) died{when}")
    for match in BY_RANK.finditer(output):
        sentences.append(f"rank {match[1] or match[2]} died")
    return list(dict.fromkeys(sentences))


def refuse(text: str) -> NoReturn:
    """End with a mistake in the input."""
    print(f"error: {text}", file=sys.stderr)
    raise SystemExit(2)


def tell_removed() -> None:
    """Remove the shared memory that earlier jobs left on this node."""
    if removed := remove_leftovers():
        where = f"on {socket.gethostname()} that killed jobs left"
        print(f"mpi_restart: removed {describe(removed)} of shared memory {where}", flush=True)


def guard(command: list[str]) -> int:
    """Run a rank's process, pass signals on, and say if it is killed."""
    tell_removed()
    passed = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
    signal.pthread_sigmask(signal.SIG_BLOCK, passed)  # until there is somebody to pass them on to
    own = os.getpid()
    pid = os.fork()
    if pid == 0:
        if sys.platform == "linux":  # whatever ends the guard ends the process too
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            if os.getppid() != own:
                os._exit(1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, passed)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            print(f"error: cannot start {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
            os._exit(2)

    def forward(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, number)

    for number in passed:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, passed)
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    what = f"guard: process {pid} on {socket.gethostname()} died by signal {number} at {time.time():.6f}"
    print(what, file=sys.stderr, flush=True)
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)  # the launcher sees what it would see without a guard
    return 1


class Stop:
    """A request to stop: passed on to the job, and kept in mind where there is none at the moment."""

    def __init__(self) -> None:
        self.asked = False
        self.job: subprocess.Popen | None = None

    def listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._note)

    def _note(self, _: int, __: object) -> None:
        self.asked = True
        if self.job is not None:
            self.job.send_signal(signal.SIGUSR1)  # all launchers pass it on; at others some kill the ranks


stop = Stop()


def run_once(command: list[str], run_dir: Path) -> tuple[int, list[str]]:
    """Start the job and pass its output on; exit code and who is to blame."""
    # ranks share the output, and may cut each other's characters in two
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
    except OSError as error:
        refuse(f"cannot start {command[0]}: {error.strerror}")
    stop.job = process
    if stop.asked:  # while it was being started
        process.send_signal(signal.SIGUSR1)
    assert process.stdout is not None
    tail: list[str] = []
    with process.stdout as output:
        for line in output:
            sys.stdout.write(line)
            sys.stdout.flush()
            tail = [*tail[-400:], line]
    status = process.wait()
    return status, blame("".join(tail), run_dir)


def find_mpiexec() -> str:
    beside = Path(sys.executable).parent / "mpiexec"
    return str(beside) if beside.is_file() else shutil.which("mpiexec") or "mpirun"


def run_dir_of(command: list[str]) -> Path:
    for i, word in enumerate(command):
        if word == "--run-dir" and i + 1 < len(command):
            return Path(command[i + 1])
        if word.startswith("--run-dir="):
            return Path(word.partition("=")[2])
    refuse("give the run a --run-dir, so that it can be found again")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", type=int, default=2, help="ranks (default: 2)")
    parser.add_argument("--launcher", help="instead of mpiexec -n N")
    parser.add_argument("--restarts", type=int, default=3, help="how often to start again (default: 3)")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds before a new start (default: 1)")
    parser.add_argument("--guard", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="jaxrl-hpc train …")
    args = parser.parse_args()
    if not args.command:
        parser.error("say what to start, such as: jaxrl-hpc train CONFIG --run-dir DIR")
    if args.guard:
        return guard(args.command)
    if args.restarts < 0 or not 0 <= args.pause < 1e6:
        refuse("--restarts and --pause: should be numbers that are not negative")
    run_dir = run_dir_of(args.command)
    try:
        launcher = shlex.split(args.launcher) if args.launcher else [find_mpiexec(), "-n", str(args.n)]
    except ValueError as error:
        refuse(f"--launcher: {error}")
    guarded = [sys.executable, str(Path(__file__).resolve()), "--guard", *args.command]
    command = [*launcher, *guarded, *([] if "--resume" in args.command else ["--resume"])]
    stop.listen()
    for attempt in range(args.restarts + 1):
        tell_removed()
        status, reasons = run_once(command, run_dir)
        if status in FINAL:
            return status
        what = "; ".join(reasons) or "no rank is named by the launcher"
        last = attempt == args.restarts
        again = "giving up" if last else "starting again from the newest checkpoint"
        again = "asked to stop, so the newest checkpoint is kept" if stop.asked else again
        print(f"mpi_restart: the job ended with code {status}: {what}; {again}", flush=True)
        if not (last or stop.asked):
            time.sleep(args.pause)
        if stop.asked:  # before the ranks could listen, while they broke, or since then
            return SAVED
    return status


if __name__ == "__main__":
    sys.exit(main())
