"""Train a config. Overrides are section.key=value.

examples:
  jaxrl-hpc train cartpole_dqn
  jaxrl-hpc train configs/cartpole_dqn.yaml run.seeds=16 agent.learning_rate=5e-4
  jaxrl-hpc train cartpole_dqn --run-dir runs/first --resume
  mpirun -n 4 jaxrl-hpc train workflows/cartpole_ppo_sharded

exit codes: 0 finished; 2 something in the input is wrong; 75 stopped by SIGTERM, SIGINT or SIGUSR1
after saving: the same command with --resume continues exactly.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from jaxrl_hpc.errors import UserError, os_errors_told


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", help="a YAML file, or the name of one in configs/")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="such as agent.gamma=0.98")
    parser.add_argument("--run-dir", help="where results go (default: runs/<run.name>)")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--resume", action="store_true", help="continue the run if it exists, exactly")
    group.add_argument(
        "--overwrite",
        action="store_true",
        help="move an earlier run in this folder to .trash beside it",
    )


def run(args: argparse.Namespace) -> int:
    from jaxrl_hpc import config as configs
    from jaxrl_hpc.comm.ranks import world
    from jaxrl_hpc.envs.external import mpi_ranks
    from jaxrl_hpc.runtime.train import EXIT_SAVED, train

    ranks = world()
    with ranks.guard(), os_errors_told():
        config = configs.load(args.config, args.overrides)
        run_dir = Path(args.run_dir or Path("runs") / config.run.name)
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
        outcome = train(config, run_dir, resume=args.resume, overwrite=args.overwrite)
        mpi_ranks.stop()
    if not outcome.finished:
        return EXIT_SAVED
    if not outcome.speaks:
        return 0
    s = _without_nulls(outcome.summary or {})
    low, high = s["eval_return_interval"]
    if "eval_improvement_score" in s:
        factor_low, factor_high = s["eval_improvement_interval"]
        interval = f", {factor_low:.3f} to {factor_high:.3f}, {s['eval_spread']}"
        print(
            f"error {s['eval_improvement_score']:.3f} times smaller than the regulator's on the same noise"
            f"{interval} (the regulator itself is 1)"
        )
    print(
        f"{s['agent']} on {s['env']}: return {s['eval_return_score']:.2f} "
        f"({low:.2f} to {high:.2f}; {s['eval_spread']})\n"
        f"{s['env_steps']:,} steps a seed in {s['wall_seconds']:.1f} s, after {s['compile_seconds']:.1f} s "
        f"to compile: {s['env_steps_per_second']:,.0f} steps/s, {s['updates_per_second']:,.0f} updates/s\n"
        f"results in {run_dir}; look at them with: jaxrl-hpc report {run_dir}"
    )
    return 0


def _without_nulls(value: Any) -> Any:
    """A summary that was read back: not-a-number was written as null."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    return math.nan if value is None else value
