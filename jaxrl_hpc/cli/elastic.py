"""Submit a run whose actors come and go to Slurm: a job for the learner, an array of actors.

examples:
  jaxrl-hpc elastic submit CONFIG --run-dir runs/e --actors 8
  jaxrl-hpc elastic submit CONFIG --run-dir runs/e --actor-slurm partition=spot
  jaxrl-hpc elastic submit CONFIG --run-dir runs/e --dry-run              only show the scripts
  jaxrl-hpc elastic add runs/e --actors 4                                 more actors for it

Settings of jobs (--slurm, --actor-slurm) are those of a sweep's section `slurm`: partition,
account, time, cpus_per_task, mem, at_once, signal_seconds, requeue, options, modules, setup.
Both jobs go back to the queue when they are stopped before the run is finished.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.user_code import TRUST_HELP

MAX_ACTORS = 4_000_000  # no Slurm has larger arrays


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, line in (
        ("submit", "submit a learner and its actors"),
        ("add", "submit more actors for a run"),
    ):
        sub = actions.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".")
        if name == "submit":
            sub.add_argument("config", help="a YAML file, or the name of one in configs/")
            sub.add_argument(
                "overrides", nargs="*", default=[], metavar="key=value", help="such as agent.gamma=0.98"
            )
            sub.add_argument("--run-dir", required=True, help="where results go")
        else:
            sub.add_argument("run_dir", help="folder of the run")
        sub.add_argument("--actors", type=int, default=4, metavar="N", help="number of actors (default: 4)")
        sub.add_argument(
            "--slurm", action="append", default=[], metavar="key=value", help="settings of all jobs"
        )
        sub.add_argument(
            "--actor-slurm",
            action="append",
            default=[],
            metavar="key=value",
            help="settings of the actors' job",
        )
        sub.add_argument(
            "--wait",
            type=float,
            default=600.0,
            metavar="S",
            help="time actors wait for a learner (default: 600)",
        )
        sub.add_argument("--trust", action="store_true", help=TRUST_HELP)
        sub.add_argument("--dry-run", action="store_true", help="print the scripts, submit nothing")


def run(args: argparse.Namespace) -> int:
    if not 1 <= args.actors <= MAX_ACTORS:
        raise UserError(f"--actors: should be from 1 to {MAX_ACTORS:,} (it is {args.actors:,})")
    if not 0 <= args.wait < 1e9:
        raise UserError(f"--wait: should be a number of seconds, 0 or more (it is {args.wait:g})")
    if len(args.run_dir.splitlines()) > 1:  # it stands in lines of a script
        raise UserError(f"--run-dir: should have no line breaks (it is {args.run_dir!r})")
    new = args.action == "submit"
    run_dir = Path(args.run_dir)
    config = check(args, run_dir) if new else check_exists(run_dir)

    from jaxrl_hpc.sweeps.elastic import ElasticJobs, slurm_config, submit

    learner = slurm_config(args.slurm, "--slurm")
    actor = slurm_config([*args.slurm, *args.actor_slurm], "--actor-slurm") if args.actor_slurm else learner
    at_once = min(args.actors, actor.at_once or args.actors)
    if at_once > config.workflow.actors:
        raise UserError(
            f"--actors: at most workflow.actors={config.workflow.actors} can act at the same time, not "
            f"{at_once}; raise that, or set --actor-slurm at_once={config.workflow.actors}"
        )
    jobs = ElasticJobs(
        run_dir=run_dir,
        config=args.config if new else "",
        overrides=args.overrides if new else [],
        actors=args.actors,
        wait_seconds=args.wait,
        learner=learner,
        actor=actor,
        trust=args.trust or new,
    )
    if args.dry_run:
        print("\n".join(jobs.scripts().values()), end="")
        return 0
    submitted = submit(jobs)
    what = " and ".join(f"{name.removesuffix('.sh')} as job {job}" for name, job in submitted.items())
    print(f"submitted {what}; logs are in {jobs.folder}\nend it with: scancel {' '.join(submitted.values())}")
    return 0


def check(args: argparse.Namespace, run_dir: Path) -> Any:
    """The config of a new run; mistakes are reported before anything is submitted."""
    from jaxrl_hpc.config.files import mistakes_located, settings_of
    from jaxrl_hpc.config.sources import find_file, name_run, read_source
    from jaxrl_hpc.runs.directory import RunDirectory

    source, data = read_source(args.config, args.overrides)
    name_run(data, source)
    with mistakes_located(source, args.overrides):
        settings = settings_of(data)
    check_elastic(settings, args.config)
    RunDirectory(run_dir).check_openable(resume=True, overwrite=False)
    args.config = str(find_file(args.config).resolve())
    return settings


def check_exists(run_dir: Path) -> Any:
    from jaxrl_hpc.config.files import mistakes_located, settings_of
    from jaxrl_hpc.runs.directory import RunDirectory

    run = RunDirectory.existing(run_dir)
    with mistakes_located(run.config_path):
        settings = settings_of(run.read_config())
    check_elastic(settings, str(run_dir))
    return settings


def check_elastic(settings: Any, what: str) -> None:
    if settings.workflow.name != "elastic":
        raise UserError(
            f"{what}: actors cannot come and go in workflow {settings.workflow.name!r}, only in "
            "workflow.name=elastic"
        )
