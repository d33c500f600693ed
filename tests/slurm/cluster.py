"""A real Slurm on this machine alone, without systemd or cgroups: munged, slurmctld and one slurmd.

with Cluster(folder) as cluster:
    job = cluster.submit("--wrap=hostname"); cluster.wait_for(job)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jaxrl_hpc.comm.hub import reserved_port

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol", "squeue", "scancel")
PACKAGES = "slurm-wlm slurm-wlm-basic-plugins munge"
PATIENCE = 3000.0  # seconds: only to name what never happens, however busy the machine is
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL")

CONFIG = """\
ClusterName={name}
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
JobRequeue=1
KillWait=30
MinJobAge=86400
InactiveLimit=0
SlurmdParameters=config_overrides
NodeName=localhost NodeAddr=127.0.0.1 CPUs=4 RealMemory=8000 State=UNKNOWN
PartitionName=main Nodes=localhost Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=localhost MaxTime=INFINITE State=UP PriorityTier=10
"""


def missing() -> str | None:
    """Why this machine cannot run the tests; None if it can."""
    if os.geteuid() != 0:
        return "a Slurm of its own needs root"
    absent = [name for name in PROGRAMS if not shutil.which(name)]
    return f"no {', '.join(absent)} on the PATH: apt-get install {PACKAGES}" if absent else None


def munge_answers() -> bool:
    return subprocess.run(["munge", "-n"], capture_output=True).returncode == 0


_started: list[subprocess.Popen[bytes]] = []  # by this process; another one may end it


def _start_munge() -> int:
    """Its process id, once it answers."""
    for path in ("/run/munge", "/var/log/munge"):
        subprocess.run(["install", "-d", "-o", "munge", "-g", "munge", "-m", "0755", path], check=True)
    command = ["runuser", "-u", "munge", "--", shutil.which("munged") or "munged", "--foreground"]
    made = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    _started.append(made)
    deadline = time.monotonic() + PATIENCE
    while not munge_answers():
        assert made.poll() is None, "munged has ended"
        assert time.monotonic() < deadline, "munge does not answer"
        time.sleep(0.1)  # between looks
    return made.pid


def _end_munge(pid: str) -> None:
    with contextlib.suppress(OSError):
        if b"munged" in Path(f"/proc/{int(pid or -1)}/cmdline").read_bytes():
            os.kill(int(pid), signal.SIGTERM)
    for made in _started:
        if str(made.pid) == pid:
            made.wait()


@contextlib.contextmanager
def munge() -> Iterator[None]:
    """The authentication service of this machine, which the clusters of several test processes share.

    The first one starts it, the last one ends it. One that was there before is used and left alone.
    """
    folder = Path(tempfile.gettempdir())
    with open(folder / "jaxrl_hpc_munge.door", "w") as door, open(folder / "jaxrl_hpc_munge", "a+") as ours:
        fcntl.flock(door, fcntl.LOCK_EX)
        if not munge_answers():
            pid = _start_munge()
            ours.truncate(0)
            ours.write(str(pid))
            ours.flush()
        fcntl.flock(ours, fcntl.LOCK_SH)  # in use
        fcntl.flock(door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(door, fcntl.LOCK_EX)
            fcntl.flock(ours, fcntl.LOCK_UN)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody else uses it
                ours.seek(0)
                _end_munge(ours.read())
                ours.truncate(0)


class Cluster:
    """One node with four cores, whatever the machine has. Everything it makes is in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        for name in ("state", "spool", "log"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        conf = folder / "slurm.conf"
        self._daemons = contextlib.ExitStack()  # what they need until the end
        controller, node = (self._daemons.enter_context(reserved_port()) for _ in range(2))
        conf.write_text(
            CONFIG.format(folder=folder, name=f"one{os.getpid()}", controller=controller, node=node)
        )
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "PMI_", "PBS_"))}
        self.environment = inherited | {"SLURM_CONF": str(conf)}
        self._own: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Cluster:
        try:
            self._daemons.enter_context(munge())
            # -D: in the foreground, so that they are ours to end
            for command in (["slurmctld", "-D"], ["slurmd", "-D", "-N", "localhost"]):
                out = open(self.log / f"{command[0]}.out", "wb")
                self._own.append(subprocess.Popen(command, env=self.environment, stdout=out, stderr=out))
                out.close()
            self.until("the node is idle", lambda: "idle" in self.ask("sinfo", "-h", "-o", "%T", check=False))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._own:
            self.ask("scancel", "--full", "--signal=KILL", "--user=root", check=False)
            self.ask("scancel", "--user=root", check=False)
        for process in reversed(self._own):
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._own = []
        self._daemons.close()

    def ask(self, *command: str, check: bool = True) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def submit(self, *arguments: str, **more: Any) -> str:
        """sbatch; the job's id."""
        environment = self.environment | more
        command = ["sbatch", "--parsable", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().split(";")[0]

    def show(self, job: str) -> dict[str, str]:
        """What scontrol says of a job; of an array the first element."""
        text = self.ask("scontrol", "--oneliner", "show", "job", job)
        return dict(item.partition("=")[::2] for item in text.splitlines()[0].split() if "=" in item)

    def states(self, job: str) -> list[str]:
        """The states of a job or of all elements of an array."""
        lines = self.ask("scontrol", "--oneliner", "show", "job", job).splitlines()
        return [
            word.partition("=")[2] for line in lines for word in line.split() if word.startswith("JobState=")
        ]

    def wait_for(self, job: str, seconds: float = PATIENCE) -> list[str]:
        """Until a job, or every element of an array, is over; the final states."""
        self.until(
            f"job {job} is over", lambda: set(self.states(job)) <= set(OVER), seconds, lambda: self.logs(job)
        )
        return self.states(job)

    def logs(self, job: str) -> str:
        """For a failed test: what the job printed."""
        path = Path(self.show(job).get("StdOut", "/nonexistent"))
        return path.read_text() if path.is_file() else f"no output in {path}"

    def until(
        self,
        what: str,
        condition: Callable[[], bool],
        seconds: float = PATIENCE,
        explain: Callable[[], str] = lambda: "",
    ) -> None:
        """Poll; a deadline that passes says what was waited for."""
        deadline = time.monotonic() + seconds
        while not condition():
            dead = [p.args for p in self._own if p.poll() is not None]
            assert not dead, f"{dead} ended while waiting until {what}: {self._daemon_logs()}"
            assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}\n{explain()}"
            time.sleep(0.1)

    def _daemon_logs(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in sorted(self.log.iterdir()))
