"""A process that acts for the learner of an elastic run, found through its run directory.

It waits for the learner, joins it, and acts. When the learner ends (killed, or its node lost) it waits for
the next one and joins that. Every wait has a deadline.
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

LOOK_SECONDS = 0.2  # between attempts to find the learner


class Over(Exception):
    """There is nothing more to do; `code` is the exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def act(
    run_dir: str | Path, wait_seconds: float, *, trust: bool = False, say: Callable[[str], None] = print
) -> int:
    """Act until the run is finished (0), or this process or the learner is asked to stop (75).

    UserError if no learner answers for `wait_seconds`, or if it refuses this process.
    """
    with StopSignals() as stop:
        search = Search(Path(run_dir), wait_seconds, stop)
        try:
            while True:
                search.address()
                taken = search.run.config_path.read_bytes()
                data = search.run.read_config()
                check_trusted(search.folder, data, trust)
                with configs.mistakes_located(search.run.config_path):
                    config = configs.from_dict(data)
                act_for(config, taken, search, say)  # returns if there is another config
        except Over as over:
            say(str(over))
            return over.code


class Search:
    """The wait for a learner."""

    def __init__(self, folder: Path, seconds: float, stop: StopSignals) -> None:
        self.folder, self.seconds, self.stop = folder, seconds, stop
        self.run = RunDirectory(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise UserError(f"{folder} is not the folder of a run")
        if self.run.config_path.is_file():
            flow = self.run.read_config().get("workflow")
            check_elastic(folder, flow.get("name") if isinstance(flow, dict) else flow)
        self.again()

    def again(self) -> None:
        """The wait begins."""
        self.deadline = time.monotonic() + self.seconds

    def address(self) -> address.LearnerAddress:
        """The learner's address, once there is one."""
        while True:
            if self.folder.is_dir() and self.run.read_summary() is not None:
                raise Over(f"{self.folder} is finished: there is nothing left to act for", 0)
            found = address.read(self.folder) if self.run.config_path.is_file() else None
            if found is not None:
                return found
            what = f"it has no {address.NAME}" if self.folder.is_dir() else "there is no such folder"
            self.pause(what)

    def pause(self, problem: str) -> None:
        """Before the next attempt; UserError if there is no time left for one."""
        if self.stop.number:
            raise Over("asked to stop", EXIT_SAVED)
        if time.monotonic() > self.deadline:
            raise UserError(
                f"{self.folder}: this actor waited {self.seconds:g} s for a learner ({problem}); start it: "
                f"jaxrl-hpc train CONFIG --run-dir {self.folder} --resume"
            )
        time.sleep(LOOK_SECONDS)


def check_elastic(folder: Path, workflow: object) -> None:
    if workflow != "elastic":
        raise UserError(
            f"{folder}: actors cannot join a run of workflow {workflow!r}, only one of workflow.name=elastic"
        )


def act_for(config: Config, content: bytes, search: Search, say: Callable[[str], None]) -> None:
    """Act with one config, for one learner after the other, until the run has another config."""
    folder, stop, lanes = search.folder, search.stop, lanes_of(config)
    check_elastic(folder, config.workflow.name)
    machine.prepare(config, len(lanes))
    machine.choose_waiting(config, Ranks())
    parts = build(config)
    check_one_seed(parts, lanes)
    flow = parts.workflow
    assert isinstance(flow, Elastic)
    with simulator_failures_told(parts.env):
        runner = make_runner(config, parts, lanes)
        watchdog = Watchdog(Ranks(), folder / "ranks", 0.0)  # records only
        job = Job(Ranks(), watchdog, folder, len(lanes), *runner.first_arguments(), stop=stop)
        flow.make_programs(job.hypers)
        runs = flow.runs(content)
        while True:
            found = search.address()
            if search.run.config_path.read_bytes() != content:
                return
            place = LearnerPlace(found.where(), found.port, found.public_key, found.token, str(found))
            try:
                finished = flow.take_part(job, place, runs, search.deadline, say)
            except LearnerGone as gone:
                if flow.took_part:
                    say(str(gone))
                    search.again()
                search.pause(str(gone))
                continue
            raise Over(*(("the run is finished", 0) if finished else ("asked to stop", EXIT_SAVED)))
