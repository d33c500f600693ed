"""A process that acts for the learner of an elastic run, found through its run directory.

It waits for the learner, joins it, and acts. When the learner goes (killed, or its node lost) it waits for the
next one and joins again. Every wait has a deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from jaxrl_hpc import config as configs
from jaxrl_hpc.comm.ranks import Ranks
from jaxrl_hpc.comm.sockets.actor_end import LearnerPlace
from jaxrl_hpc.comm.sockets.wire import LearnerGone
from jaxrl_hpc.comm.watchdog import Watchdog
from jaxrl_hpc.config import Config
from jaxrl_hpc.envs.external.host import simulator_failures_told
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runs import address
from jaxrl_hpc.runs.directory import RunDirectory
from jaxrl_hpc.runtime import machine
from jaxrl_hpc.runtime.build import build
from jaxrl_hpc.runtime.signals import StopSignals
from jaxrl_hpc.runtime.train import EXIT_SAVED, check_one_seed, lanes_of, make_runner
from jaxrl_hpc.types import Job
from jaxrl_hpc.user_code import check_trusted
from jaxrl_hpc.workflows.actor_learner.elastic import Elastic

LOOK_SECONDS = 0.2  # between looks for the learner's address


class Finished(Exception):
    """There is nothing to act for any more."""


def act(
    run_dir: str | Path, wait_seconds: float, *, trust: bool = False, say: Callable[[str], None] = print
) -> int:
    """Act until the run is finished (0), or this process or the learner is told to stop (75).

    UserError if no learner answers for `wait_seconds`, refuses this process, or runs something else.
    """
    folder = Path(run_dir)
    with StopSignals() as stop:
        try:
            seek = Search(folder, wait_seconds, stop)
            seek.address()
            data = RunDirectory.existing(folder).read_config()
            check_trusted(folder, data, trust)
            with configs.mistakes_located(folder / "config.yaml"):
                config = configs.from_dict(data)
            return _act(config, seek, stop, say)
        except Finished as end:
            say(str(end))
            return 0
        except Stopped:
            return EXIT_SAVED


class Stopped(Exception):
    """Asked to stop while waiting."""


class Search:
    """The wait for a learner."""

    def __init__(self, folder: Path, seconds: float, stop: StopSignals) -> None:
        self.folder, self.seconds, self.stop = folder, seconds, stop
        self.problem = ""
        self.again()

    def again(self) -> None:
        """The wait begins."""
        self.deadline = time.monotonic() + self.seconds

    def address(self) -> address.LearnerAddress:
        """Of the learner, as soon as there is one."""
        run = RunDirectory(self.folder)
        while True:
            if self.folder.is_dir() and run.read_summary() is not None:
                raise Finished(f"{self.folder} is finished: there is nothing left to act for")
            found = address.read(self.folder) if run.config_path.is_file() else None
            if found is not None:
                return found
            self.pause(f"there is no {address.NAME}")

    def pause(self, problem: str) -> None:
        """Before the next attempt; UserError if there is no time left for one."""
        self.problem = problem
        if self.stop.number:
            raise Stopped
        if time.monotonic() > self.deadline:
            raise UserError(
                f"{self.folder}: this actor waited {self.seconds:g} s for a learner ({self.problem}); start one "
                f"with jaxrl-hpc train CONFIG --run-dir {self.folder} --resume"
            )
        time.sleep(LOOK_SECONDS)


def _act(config: Config, seek: Search, stop: StopSignals, say: Callable[[str], None]) -> int:
    folder, lanes = seek.folder, lanes_of(config)
    if config.workflow.name != "elastic":
        raise UserError(
            f"{folder}: workflow {config.workflow.name!r} has no actors that come and go; they are for runs of "
            "workflow.name=elastic"
        )
    machine.prepare(config, len(lanes))
    machine.choose_waiting(config, Ranks())
    parts = build(config)
    check_one_seed(parts, lanes)
    flow = parts.workflow
    assert isinstance(flow, Elastic)
    with simulator_failures_told(parts.env):
        runner = make_runner(config, parts, lanes)
        watchdog = Watchdog(Ranks(), folder / "ranks", 0.0)
        job = Job(Ranks(), watchdog, folder, len(lanes), *runner.first_arguments(), stop=stop)
        flow.make_programs(job.hypers)
        while True:
            found = seek.address()
            place = LearnerPlace(found.where(), found.port, found.public_key, found.token, str(found))
            try:
                finished = flow.take_part(job, place, seek.deadline, say)
            except LearnerGone as gone:
                if flow.took_part:
                    say(str(gone))
                    seek.again()
                seek.pause(str(gone))
                continue
            return 0 if finished else EXIT_SAVED
