"""Train a config. Overrides are section.key=value.

examples:
  jaxrl-hpc train cartpole_dqn
  jaxrl-hpc train cartpole_dqn run.seeds=16 agent.learning_rate=5e-4
  jaxrl-hpc train cartpole_dqn --run-dir runs/first --resume
  jaxrl-hpc train cartpole_dqn --dry-run
  mpirun -n 4 jaxrl-hpc train workflows/cartpole_ppo_sharded

Results go to --run-dir, or to runs/<run.name>. Without either, a second run of a config gets a number, such
as runs/cartpole_dqn-2; in a batch job or with several processes an existing run is refused instead.

exit codes: 0 finished; 2 invalid input; 75 stopped by SIGTERM, SIGINT or SIGUSR1
after saving: the same command with --run-dir and --resume continues exactly; 130 interrupted before
that.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from jaxrl_hpc.errors import UserError, os_errors_told
from jaxrl_hpc.schema import FOLDER_NAME

if TYPE_CHECKING:
    from jaxrl_hpc.comm.ranks import Ranks
    from jaxrl_hpc.config import Config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", help="a YAML file, or the name of one in configs/")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="settings, such as agent.gamma=0.98"
    )
    parser.add_argument("--run-dir", help="folder for results (default: runs/<run.name>)")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--resume", action="store_true", help="continue the run if it exists, exactly")
    group.add_argument(
        "--overwrite",
        action="store_true",
        help="move an earlier run in this folder to .trash beside it",
    )
    group.add_argument(
        "--dry-run", action="store_true", help="show what would be trained: parts, shapes, memory, time"
    )

    by_hand = parser.add_argument_group(
        "processes without MPI", "for workflow sharded; not needed with srun and mpirun"
    )
    by_hand.add_argument("--coordinator", metavar="HOST:PORT", help="address of process 0")
    by_hand.add_argument("--processes", type=int, metavar="N", help="number of processes")
    by_hand.add_argument("--process", type=int, metavar="I", help="number of this process, from 0")
    by_hand.add_argument(
        "--start-seconds",
        type=float,
        default=120.0,
        metavar="S",
        help="time to wait for all processes (default: 120)",
    )


def run(args: argparse.Namespace) -> int:
    from jaxrl_hpc.comm import launch
    from jaxrl_hpc.comm.ranks import world
    from jaxrl_hpc.config.sources import name_run, read_source
    from jaxrl_hpc.runs.directory import RunDirectory

    ranks = world()
    with ranks.guard(), os_errors_told():
        launch.by_hand(args.coordinator, args.processes, args.process, args.start_seconds)
        without_mpi = launch.found()
        processes = without_mpi.processes if without_mpi else ranks.size
        source, data = read_source(args.config, args.overrides)
        named = name_run(data, source)
        folder, automatic = choose_folder(args, data["run"], named, processes)
        if folder and not (automatic or args.dry_run or processes > 1):
            RunDirectory(folder).check_openable(args.resume, args.overwrite)  # refused before JAX is loaded

        from jaxrl_hpc.config.files import from_dict, mistakes_located, settings_of
        from jaxrl_hpc.runtime.host import check_least_memory

        with mistakes_located(source, args.overrides):
            settings = settings_of(data)
        check_least_memory(settings)
        config = from_dict(data)
        assert folder is not None  # else its name was refused
        if args.dry_run:
            from jaxrl_hpc.cli.dry_run import describe

            print(describe(config, next_free(folder) if automatic else folder))
            return 0
        if without_mpi and args.coordinator and not config.workflow.resources().engine:
            raise UserError(
                f"--coordinator: workflow {config.workflow.name!r} cannot use processes without MPI; use "
                "workflow.name=sharded, or start it with mpirun"
            )
        with claimed(folder) if automatic else contextlib.nullcontext(folder) as run_dir:
            return train_in(run_dir, config, ranks, args)


def choose_folder(
    args: argparse.Namespace, section: Any, named: bool, processes: int
) -> tuple[Path | None, bool]:
    """The results folder, and whether a number may be added to it; None if the name is invalid."""
    from jaxrl_hpc.runs.naming import in_batch_job

    if args.run_dir:
        return Path(args.run_dir), False
    name = section.get("name") if isinstance(section, dict) else None
    if not (isinstance(name, str) and re.match(FOLDER_NAME, name)):
        return None, False
    given = named or args.resume or args.overwrite
    return Path("runs") / name, not (given or processes > 1 or in_batch_job())


def next_free(folder: Path) -> Path:
    """The folder that `claimed` would create now."""
    from jaxrl_hpc.runs.naming import candidates

    return next(path for path in candidates(folder.parent, folder.name) if not path.exists())


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[Path]:
    """The first free folder of this name, removed again if no run begins in it."""
    from jaxrl_hpc.runs.naming import claim_folder, release_folder

    path = claim_folder(folder.parent, folder.name)
    before = signal.getsignal(signal.SIGINT)

    def leave(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            release_folder(path)
        if callable(before):
            before(number, frame)

    ours = callable(before) and threading.current_thread() is threading.main_thread()
    if ours:  # Ctrl-C may end the process at once
        signal.signal(signal.SIGINT, leave)
    print(f"run directory {path}", flush=True)
    try:
        yield path
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)
        release_folder(path)


def train_in(run_dir: Path, config: Config, ranks: Ranks, args: argparse.Namespace) -> int:
    from jaxrl_hpc.envs.external import mpi_ranks
    from jaxrl_hpc.runtime.signals import EXIT_SAVED
    from jaxrl_hpc.runtime.train import train

    if mpi_ranks.are_wanted(config.env) and config.workflow.uses_ranks:
        raise UserError(
            "workflow.name: an environment of type mpi_program takes all ranks of the job, and "
            "rank 0 alone learns: use workflow.name=fused"
        )
    if mpi_ranks.are_wanted(config.env) and not ranks.first:
        mpi_ranks.serve()  # these ranks are the environment
        return 0
    if ranks.size > 1 and not (config.workflow.uses_ranks or mpi_ranks.are_wanted(config.env)):
        raise UserError(
            f"workflow {config.workflow.name!r} runs in one process, but this is a job of {ranks.size}: "
            "start it without mpirun, or use workflow.name=sharded"
        )

    def show(summary: dict[str, Any]) -> None:
        print(result_text(summary, run_dir), flush=True)

    outcome = train(config, run_dir, resume=args.resume, overwrite=args.overwrite, on_summary=show)
    mpi_ranks.stop()
    return 0 if outcome.finished else EXIT_SAVED


def result_text(summary: dict[str, Any], run_dir: Path) -> str:
    """The summary as text."""
    s = _without_nulls(summary)
    low, high = s["eval_return_interval"]
    text = ""
    if "eval_improvement_score" in s:
        factor_low, factor_high = s["eval_improvement_interval"]
        text = (
            f"error {s['eval_improvement_score']:.3f} times smaller than the regulator's on the same noise,\n"
            f"  {factor_low:.3f} to {factor_high:.3f}, {s['eval_spread']} (the regulator itself is 1)\n"
        )
    return text + (
        f"{s['agent']} on {s['env']}: return {s['eval_return_score']:.2f}, {low:.2f} to {high:.2f}\n"
        f"  ({s['eval_spread']})\n"
        f"{s['env_steps']:,} steps per seed in {s['wall_seconds']:.1f} s, after {s['compile_seconds']:.1f} s "
        f"of compilation\n"
        f"  ({s['env_steps_per_second']:,.0f} steps/s, {s['updates_per_second']:,.0f} updates/s)\n"
        f"results in {run_dir}; look at them with:\n"
        f"  jaxrl-hpc report {run_dir}"
    )


def _without_nulls(value: Any) -> Any:
    """A summary read from file, where NaN was written as null."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    return math.nan if value is None else value
