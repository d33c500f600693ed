"""Acting for the learners of an elastic run, one after the other, with the programs of one config."""

from __future__ import annotations

from jaxrl_hpc.comm.ranks import Ranks
from jaxrl_hpc.comm.sockets.actor_end import LearnerPlace
from jaxrl_hpc.comm.sockets.wire import LearnerGone
from jaxrl_hpc.comm.watchdog import Watchdog
from jaxrl_hpc.config import Config
from jaxrl_hpc.envs.external.host import simulator_failures_told
from jaxrl_hpc.runtime import machine
from jaxrl_hpc.runtime.acting import Over, Search, check_elastic
from jaxrl_hpc.runtime.build import build
from jaxrl_hpc.runtime.signals import EXIT_SAVED
from jaxrl_hpc.runtime.train import check_one_seed, lanes_of, make_runner
from jaxrl_hpc.types import Job
from jaxrl_hpc.workflows.actor_learner.elastic import Elastic


def act_for(config: Config, content: bytes, search: Search) -> None:
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
                finished = flow.take_part(job, place, runs, search.deadline, search.say)
            except LearnerGone as gone:
                if flow.took_part:
                    search.again()
                    search.announced = False
                search.pause(str(gone))
                continue
            raise Over(*(("the run is finished", 0) if finished else ("asked to stop", EXIT_SAVED)))
