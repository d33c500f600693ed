"""A process that acts for the learner of an elastic run, found through its run directory.

It waits for the learner, joins it, and acts. When the learner ends (killed, or its node lost) it waits for
the next one and joins that. Every wait has a deadline. JAX is loaded once it is known what this process waits
for, or that there is a learner.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from jaxrl_hpc import config as configs
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runs import address
from jaxrl_hpc.runs.address import LearnerAddress
from jaxrl_hpc.runs.directory import RunDirectory
from jaxrl_hpc.runtime.signals import EXIT_SAVED, StopSignals
from jaxrl_hpc.user_code import check_trusted

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
        search = Search(Path(run_dir), wait_seconds, stop, say)
        try:
            search.look()

            from jaxrl_hpc.runtime.taking_part import act_for

            search.again()
            while True:
                search.address()
                taken = search.run.config_path.read_bytes()
                data = search.run.read_config()
                check_trusted(search.folder, data, trust)
                with configs.mistakes_located(search.run.config_path):
                    config = configs.from_dict(data)
                act_for(config, taken, search)  # returns if there is another config
        except Over as over:
            say(str(over))
            return over.code


class Search:
    """The wait for a learner."""

    def __init__(self, folder: Path, seconds: float, stop: StopSignals, say: Callable[[str], None]) -> None:
        self.folder, self.seconds, self.stop, self.say = folder, seconds, stop, say
        self.announced = False  # that this process waits
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

    def address(self) -> LearnerAddress:
        """The learner's address, once there is one."""
        while True:
            found = self.look()
            if found is not None:
                return found

    def look(self) -> LearnerAddress | None:
        """The address, if there is one, or a pause."""
        if self.folder.is_dir() and self.run.read_summary() is not None:
            raise Over(f"{self.folder} is finished: there is nothing left to act for", 0)
        found = address.read(self.folder) if self.run.config_path.is_file() else None
        if found is None:
            self.pause(f"it has no {address.NAME}" if self.folder.is_dir() else "there is no such folder")
        return found

    def pause(self, problem: str) -> None:
        """Before the next attempt; UserError if there is no time left for one."""
        if self.stop.number:
            raise Over("asked to stop", EXIT_SAVED)
        if time.monotonic() > self.deadline:
            raise UserError(
                f"{self.folder}: this actor waited {self.seconds:g} s for a learner ({problem}); start it: "
                f"jaxrl-hpc train CONFIG --run-dir {self.folder} --resume"
            )
        if not self.announced:
            self.say(f"{self.folder}: waiting up to {self.seconds:g} s (--wait) for a learner ({problem})")
            self.announced = True
        time.sleep(LOOK_SECONDS)


def check_elastic(folder: Path, workflow: object) -> None:
    if workflow != "elastic":
        raise UserError(
            f"{folder}: actors cannot join a run of workflow {workflow!r}, only one of workflow.name=elastic"
        )
