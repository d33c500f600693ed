"""An elastic run on Slurm: a job for the learner, and an array whose elements are actors.

The array starts after the learner, and its elements run as Slurm schedules them. Scripts and logs
are in `<run>.slurm`, beside the run's folder, which the learner makes itself.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from jaxrl_hpc.checkpoint.blocks import write_atomically
from jaxrl_hpc.config.files import validate
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.sweeps import slurm
from jaxrl_hpc.sweeps.spec import SlurmConfig

TEXTS = ("partition", "account", "time", "mem")  # as they stand; YAML would take 1:00:00 for a number
START = [sys.executable, "-m", "jaxrl_hpc.cli.main"]
WRITER = "`jaxrl-hpc elastic`"


class ElasticJobs(NamedTuple):
    """The jobs to submit."""

    run_dir: Path
    config: str  # of the learner; empty: only actors are wanted, for a run that exists
    overrides: Sequence[str]
    actors: int
    wait_seconds: float  # for which actors wait for a learner
    learner: SlurmConfig
    actor: SlurmConfig
    trust: bool

    @property
    def folder(self) -> Path:
        run = Path(os.path.abspath(self.run_dir))  # "." has no name
        return run.with_name(f"{run.name}.slurm").resolve()

    def scripts(self) -> dict[str, str]:
        """Name of the script -> its text, in the order of submission."""
        run, name = str(self.run_dir.resolve()), self.folder.stem
        learner = [*START, "train", self.config, *self.overrides, "--run-dir", run, "--resume"]
        actor = [*START, "actor", run, "--wait", f"{self.wait_seconds:g}", *(["--trust"] * self.trust)]
        found = {}
        if self.config:
            found["learner.sh"] = slurm.job_script(
                self.learner,
                name=name,
                log=f"{self.folder}/learner-%j.log",
                command=shlex.join(learner),
                writer=WRITER,
            )
        found["actors.sh"] = slurm.job_script(
            self.actor,
            name=f"{name}-actors",
            log=f"{self.folder}/actor-%A_%a.log",
            command=shlex.join(actor),
            writer=WRITER,
            array=slurm.ranges(range(self.actors)),
        )
        return found


def slurm_config(settings: Sequence[str], option: str) -> SlurmConfig:
    """`key=value` texts as settings of a job."""
    data: dict[str, Any] = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"{option}: should be key=value (it is {text!r})")
        try:
            data[key] = value if key in TEXTS else yaml.safe_load(value)
        except yaml.YAMLError:
            raise UserError(f"{option}: {value!r} is no value for {key}") from None
    problems: list[str] = []
    found = validate(option, SlurmConfig, data, problems)
    if found is None:
        raise UserError("\n".join(problems))
    return found


def submit(jobs: ElasticJobs) -> dict[str, str]:
    """Write the scripts and hand them to Slurm: name of the script -> id of its job."""
    if not shutil.which("sbatch"):
        raise UserError("there is no sbatch on this machine; look at the scripts with --dry-run")
    folder = jobs.folder
    if jobs.config and (queued := slurm.jobs_in_queue(folder)):
        raise UserError(
            f"the run is already in the queue as job {', '.join(queued)}; wait for it, end it with "
            f"scancel {' '.join(queued)}, or add actors with jaxrl-hpc elastic add {jobs.run_dir}"
        )
    slurm.check_array_size(jobs.actors - 1, "--actors", "submit fewer, and more with jaxrl-hpc elastic add")
    folder.mkdir(parents=True, exist_ok=True)
    submitted: dict[str, str] = {}
    for name, text in jobs.scripts().items():
        path = folder / name
        write_atomically(path, text.encode())
        after = [f"--dependency=after:{job}" for job in submitted.values()]
        submitted[name] = slurm.sbatch(path, *after)
        record = {"job": submitted[name], "script": name, "submitted": time.time()}
        with open(folder / "jobs.jsonl", "a") as file:
            file.write(json.dumps(record) + "\n")
    return submitted
