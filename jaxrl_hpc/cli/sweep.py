"""Plan many trials of one config, run them here or as a job array, and look at the results.

examples:
  jaxrl-hpc sweep plan cartpole_dqn                      what would run, and how it is packed
  jaxrl-hpc sweep run cartpole_dqn                       all of it here, on every core
  jaxrl-hpc sweep run cartpole_dqn --task 3              one task; in a job array the index is automatic
  jaxrl-hpc sweep submit cartpole_dqn --dry-run          the Slurm job array; without --dry-run submit it
  jaxrl-hpc sweep status runs/sweeps/cartpole_dqn        progress, best so far
  jaxrl-hpc sweep collect cartpole_dqn                   one Parquet table with a row per trial
  jaxrl-hpc report runs/sweeps/cartpole_dqn              one HTML page

Every command can be repeated at any time: finished trials are kept, interrupted tasks continue exactly,
damaged results are made again. FILE is a sweep file, the name of one in configs/sweeps/, or the folder of a
sweep. Settings of all trials can be changed by section.key=value. The index of a task comes from --task,
SLURM_ARRAY_TASK_ID, PBS_ARRAY_INDEX or PBS_ARRAYID; in a plain shell:
  seq 0 3 | xargs -P 2 -I{} jaxrl-hpc sweep run cartpole_dqn --task {}

exit codes: 0 done, or waiting for other tasks; 1 a task failed; 2 invalid input; 75 stopped by SIGTERM,
SIGINT or SIGUSR1 after saving: the same command continues.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from jaxrl_hpc.user_code import TRUST_HELP

if TYPE_CHECKING:
    from jaxrl_hpc.sweeps.directory import SweepDirectory
    from jaxrl_hpc.sweeps.plan import SweepPlan

ACTIONS = {
    "plan": "show the trials and how they are packed into tasks",
    "run": "run all tasks here, or one of them",
    "submit": "submit the tasks as a Slurm job array",
    "status": "show the progress of every task",
    "collect": "write one Parquet table with a row per trial",
}
INDEX_VARIABLES = ("SLURM_ARRAY_TASK_ID", "PBS_ARRAY_INDEX", "PBS_ARRAYID")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, line in ACTIONS.items():
        sub = actions.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".")
        sub.epilog = f"example: jaxrl-hpc sweep {name} cartpole_dqn"
        sub.add_argument("file", metavar="FILE", help="a sweep file, its name, or the folder of a sweep")
        sub.add_argument(
            "overrides",
            nargs="*",
            default=[],
            metavar="key=value",
            help="settings of all trials, such as run.total_env_steps=5000",
        )
        sub.add_argument("--dir", help="folder of the sweep (default: runs/sweeps/<name>)")
        sub.add_argument("--trust", action="store_true", help=TRUST_HELP)
        if name in ("plan", "status"):
            sub.add_argument("--json", action="store_true", help="print JSON instead of text")
        if name == "run":
            sub.add_argument("--task", type=int, metavar="I", help="only this task")
            sub.add_argument(
                "--jobs", type=int, metavar="N", help="tasks at the same time (default: by cores)"
            )
        if name == "submit":
            sub.add_argument("--dry-run", action="store_true", help="print the job script, submit nothing")
        if name == "collect":
            sub.add_argument("--output", help="the table (default: results.parquet in the sweep's folder)")


def array_index(task: int | None, environment: Mapping[str, str] = os.environ) -> int | None:
    """The task from --task, else from a job array's variable."""
    from jaxrl_hpc.errors import UserError

    if task is not None:
        return task
    for name in INDEX_VARIABLES:
        text = environment.get(name, "")
        if text and not text.isdigit():
            raise UserError(f"{name}: should be the number of a task (it is {text!r}); or use --task")
        if text:
            return int(text)
    return None


def run(args: argparse.Namespace) -> int:
    from jaxrl_hpc.sweeps.spec import load_spec

    # reports mistakes before JAX is loaded
    spec = load_spec(args.file, tuple(args.overrides), trust=args.trust)

    from jaxrl_hpc.cli import sweep_text
    from jaxrl_hpc.sweeps.directory import SweepDirectory
    from jaxrl_hpc.sweeps.plan import make_plan

    plan = make_plan(spec)
    directory = SweepDirectory.of(spec, args.dir, args.file)
    directory.trust = args.trust
    if args.action == "plan":
        sweep_text.show_plan(plan, directory, args.json)
    elif args.action == "status":
        sweep_text.show_status(plan, directory, args.json)
    elif args.action == "collect":
        sweep_text.collect(plan, directory, Path(args.output) if args.output else directory.table)
    elif args.action == "submit":
        return _submit(plan, directory, args.dry_run)
    else:
        return _run(plan, directory, args)
    return 0


def _submit(plan: SweepPlan, directory: SweepDirectory, dry_run: bool) -> int:
    from jaxrl_hpc.sweeps import local, slurm
    from jaxrl_hpc.sweeps.run import check_metric

    check_metric(plan, plan.trials[0].config)
    plan_file = directory.freeze(plan, write=not dry_run)
    if dry_run:
        todo = [task.index for task in local.unfinished(plan, directory)]
        print(slurm.script(plan, plan_file, directory, todo) if todo else "nothing left to do")
        return 0
    jobs = slurm.submit(plan, plan_file, directory)
    if not jobs:
        print("nothing left to do: every trial has a result")
        return 0
    print(
        f"submitted as job {', '.join(jobs)}; follow it with: jaxrl-hpc sweep status {directory.path}\n"
        f"logs are in {directory.slurm}; end it with: scancel {' '.join(jobs)}"
    )
    return 0


def _run(plan: SweepPlan, directory: SweepDirectory, args: argparse.Namespace) -> int:
    from jaxrl_hpc.cli import sweep_text
    from jaxrl_hpc.errors import UserError
    from jaxrl_hpc.runtime.signals import EXIT_SAVED
    from jaxrl_hpc.sweeps import local
    from jaxrl_hpc.sweeps.run import SAVED, check_metric, run_task

    if args.jobs is not None and args.jobs < 1:
        raise UserError(f"--jobs: should be at least 1 (it is {args.jobs})")
    index = array_index(args.task)
    if index is not None:
        plan.task(index)  # report a wrong number before anything is written
    alone = index is not None or len(plan.tasks) == 1
    if not alone:  # a task of this process checks it itself, once it has set up the machine
        check_metric(plan, plan.trials[0].config)
    plan_file = directory.freeze(plan)
    if alone:
        outcome = run_task(plan, directory, index or 0)
        print(outcome.text)
        code = EXIT_SAVED if outcome.state == SAVED else 0
        if code == 0 and index is None:
            sweep_text.show_best(plan, directory)
        return code
    code = local.run_all(plan, plan_file, directory, print, args.jobs)
    if code == 0:
        sweep_text.show_best(plan, directory)
    return code
