"""A sweep as a Slurm job array: one element per unfinished task.

The job script passes Slurm's signals (before the time limit, at preemption) on to the task, which saves and
ends; then the job goes back to the queue and continues exactly. With successive halving the array is
submitted once per rung, each after the previous one has ended: the same command runs every task as far as
possible.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from jaxrl_hpc.checkpoint.blocks import write_atomically
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.sweeps import local
from jaxrl_hpc.sweeps.directory import SweepDirectory
from jaxrl_hpc.sweeps.plan import SweepPlan
from jaxrl_hpc.sweeps.spec import SlurmConfig

SCRIPT = """\
#!/bin/bash
{directives}
# Written by {writer}.
{setup}
{command}
"""
# also in scripts/slurm/, for users to see; a test keeps them equal
WAIT_AND_REQUEUE = """\
run=$!
# USR1 (sent before the time limit) and TERM (preemption) are passed on; the run saves and ends with code 75.
# If Slurm still calls the job running, it goes back to the queue to continue; a cancelled one does not.
asked=
trap 'asked=yes; kill -s USR1 "$run" 2>/dev/null' USR1 TERM
while kill -0 "$run" 2>/dev/null; do wait "$run"; status=$?; done
if [ "$status" -eq 75 ] || { [ "$status" -ne 0 ] && [ -n "$asked" ]; }; then
  state=$(squeue --noheader --format=%T --jobs="$SLURM_JOB_ID")
  if [ "$state" = RUNNING ]; then scontrol requeue "$SLURM_JOB_ID"; fi
fi
exit "$status"
"""


def ranges(indices: Sequence[int]) -> str:
    """[0, 1, 2, 5] -> "0-2,5", as sbatch --array takes it."""
    parts: list[list[int]] = []
    for index in sorted(indices):
        if parts and index == parts[-1][-1] + 1:
            parts[-1].append(index)
        else:
            parts.append([index])
    return ",".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def script(plan: SweepPlan, plan_file: Path, directory: SweepDirectory, tasks: Sequence[int]) -> str:
    """The text of the job script."""
    root = directory.path.resolve()
    task = local.command(plan_file.resolve(), SweepDirectory(root), "INDEX")
    return job_script(
        plan.spec.slurm,
        name=plan.spec.name,
        log=f"{root}/slurm/%A_%a.log",
        command=shlex.join(task).replace("INDEX", '"$SLURM_ARRAY_TASK_ID"'),
        writer=f"`jaxrl-hpc sweep submit` for the plan {plan_file.name}",
        array=ranges(tasks),
    )


def job_script(
    wanted: SlurmConfig, *, name: str, log: str, command: str, writer: str, array: str | None = None
) -> str:
    """The text of a script that runs a command, and goes back to the queue if it was stopped."""
    throttle = f"%{wanted.at_once}" if wanted.at_once else ""
    options = {
        "--job-name": name,
        "--array": array + throttle if array else None,
        "--output": log,
        "--open-mode": "append",
        "--nodes": 1,
        "--ntasks": 1,
        "--cpus-per-task": wanted.cpus_per_task,
        "--partition": wanted.partition,
        "--account": wanted.account,
        "--time": wanted.time,
        "--mem": wanted.mem,
        "--signal": f"B:USR1@{wanted.signal_seconds}" if wanted.requeue else None,
    }
    lines = [f"{name}={shlex.quote(str(value))}" for name, value in options.items() if value is not None]
    lines += ["--requeue"] if wanted.requeue else ["--no-requeue"]
    lines += wanted.options
    setup = [f"module load {shlex.quote(name)}" for name in wanted.modules] + list(wanted.setup)
    return SCRIPT.format(
        directives="\n".join(f"#SBATCH {line}" for line in lines),
        writer=writer,
        setup="\n".join(setup),
        command=f"{command} &\n{WAIT_AND_REQUEUE.rstrip()}" if wanted.requeue else command,
    )


def submit(plan: SweepPlan, plan_file: Path, directory: SweepDirectory) -> list[str]:
    """Write the job script and hand it to Slurm; the job ids, one per rung."""
    tasks = [task.index for task in local.unfinished(plan, directory)]
    if not tasks:
        return []
    if not shutil.which("sbatch"):
        raise UserError("there is no sbatch on this machine; --dry-run shows the script")
    queued = jobs_in_queue(directory.slurm)
    if queued:
        raise UserError(
            f"the sweep is already in the queue as job {', '.join(queued)}; "
            f"wait for it, or end it with: scancel {' '.join(queued)}"
        )
    check_array_size(max(tasks), "trials_per_task", "pack more trials into a task")
    path = write_script(plan, plan_file, directory)
    rounds = plan.spec.halving.rungs if plan.spec.halving else 1
    jobs: list[str] = []
    for _ in range(rounds):
        after = [f"--dependency=afterany:{jobs[-1]}"] if jobs else []
        jobs.append(sbatch(path, *after))
        record = {"job": jobs[-1], "tasks": ranges(tasks), "plan": plan_file.name, "submitted": time.time()}
        with open(directory.slurm / "jobs.jsonl", "a") as file:
            file.write(json.dumps(record) + "\n")
    return jobs


def write_script(plan: SweepPlan, plan_file: Path, directory: SweepDirectory) -> Path:
    directory.slurm.mkdir(parents=True, exist_ok=True)
    tasks = [task.index for task in local.unfinished(plan, directory)]
    path = directory.slurm / "array.sh"
    write_atomically(path, script(plan, plan_file, directory, tasks).encode())
    return path


def sbatch(script: Path, *options: str) -> str:
    """Submit a script -> the id of its job."""
    return _ask(["sbatch", "--parsable", *options, str(script)]).split(";")[0].strip()


def jobs_in_queue(folder: Path) -> list[str]:
    """Jobs noted in this folder that Slurm still knows as waiting or running."""
    record = folder / "jobs.jsonl"
    if not record.is_file() or not shutil.which("squeue"):
        return []
    jobs = [json.loads(line)["job"] for line in record.read_text().splitlines() if line.strip()]
    listed = subprocess.run(
        ["squeue", "--noheader", "--format=%F", f"--jobs={','.join(jobs)}"], capture_output=True, text=True
    )  # an error means that none of them is known any more
    return [job for job in jobs if job in listed.stdout.split()]


def check_array_size(largest: int, what: str, advice: str) -> None:
    """Check the limit on array indices of this Slurm; a refusal says what needs them, and what to do."""
    if not shutil.which("scontrol"):
        return
    found = re.search(r"MaxArraySize\s*=\s*(\d+)", _ask(["scontrol", "show", "config"]))
    if found and largest >= int(found[1]):
        raise UserError(
            f"{what}: this Slurm takes array indices below {found[1]}, and {largest} is needed; {advice}"
        )


def _ask(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        raise UserError(f"{command[0]} did not answer within 60 s") from None
    if done.returncode:
        reason = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise UserError(f"{command[0]} refused: {reason}")
    return done.stdout
