"""How processes of a job without MPI were started, and how they find process 0.

By hand:  jaxrl-hpc train CONFIG --coordinator HOST:PORT --processes N --process I, on every host.
Slurm:    srun without an MPI plug-in provides everything in its variables. Process 0 is on the first node of
          the step; it takes the first free port of a few derived from the numbers of job and step, and the
          others try these in turn, so that steps and jobs on one node do not collide.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from jaxrl_hpc.comm import hub, ranks
from jaxrl_hpc.comm.hub_ranks import HubRanks
from jaxrl_hpc.errors import UserError

FIRST_PORT, PORTS = 61_440, 4_096  # above those that systems give to clients
TRIED_PORTS = 8


class Launch(NamedTuple):
    """A process among those of a job."""

    process: int
    processes: int
    host: str  # of process 0
    ports: tuple[int, ...]  # where it may listen
    token: str = ""  # of this job and no other
    seconds: float = hub.START_SECONDS  # until all must be there

    def connect(self) -> HubRanks:
        """Waits for all processes; UserError names those that do not come."""
        listener = hub.listen(self.ports) if self.process == 0 else None
        connection = hub.connect(
            [self.host], self.ports, self.process, self.processes, self.token, self.seconds, listener
        )
        return HubRanks(connection)


_by_hand: Launch | None = None


def by_hand(
    coordinator: str | None,
    processes: int | None,
    process: int | None,
    seconds: float = hub.START_SECONDS,
) -> None:
    """The options of the command line; all may be missing."""
    global _by_hand
    given = {"--coordinator": coordinator, "--processes": processes, "--process": process}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == 3:
        return
    if coordinator is None or processes is None or process is None:
        raise UserError(f"{', '.join(missing)}: give --coordinator, --processes and --process together")
    if not 0 <= process < processes:
        raise UserError(f"--process: should be from 0 to {processes - 1}, as --processes is {processes}")
    host, colon, port = coordinator.rpartition(":")
    if not (colon and host and port.isdigit() and 0 < int(port) < 65_536):
        raise UserError(f"--coordinator: should be HOST:PORT (it is {coordinator!r})")
    if seconds <= 0:
        raise UserError(f"--start-seconds: should be more than 0 (it is {seconds:g})")
    _by_hand = Launch(process, processes, host.strip("[]"), (int(port),), "", seconds)


def first_host(nodes: str) -> str:
    """The first name of a Slurm list such as 'node[003-007,012],login1'."""
    found = re.match(r"([^\[,]*)(?:\[([^\],-]+)[^\]]*\]([^,]*))?", nodes)
    assert found is not None
    prefix, number, suffix = found.groups()
    return prefix + (number or "") + (suffix or "")


def slurm_step(environment: Mapping[str, str]) -> Launch | None:
    """The step that `srun` started this process in; None outside of one, or if it is the only process.

    A batch script itself has no step of its own, though its variables name the tasks of the job.
    """
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID")
    if not all(environment.get(name, "").isdigit() for name in names):
        return None
    job, step, processes, process = (int(environment[name]) for name in names)
    if processes == 1:
        return None
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "localhost")
    start = 97 * job + 13 * step
    ports = tuple(FIRST_PORT + (start + i) % PORTS for i in range(TRIED_PORTS))
    cluster, restarts = environment.get("SLURM_CLUSTER_NAME", ""), environment.get("SLURM_RESTART_COUNT", "0")
    token = f"slurm {cluster} {job}.{step}.{restarts}"
    return Launch(process, processes, first_host(nodes), ports, token)


def found() -> Launch | None:
    """How this process was started, if by hand or by srun without MPI; an MPI launcher comes first."""
    if ranks.launched_size() > 1:
        if _by_hand is not None:
            raise UserError("--coordinator: not needed, since an MPI launcher started this process")
        return None
    return _by_hand or slurm_step(os.environ)
