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
import shutil
from pathlib import Path

from jaxrl_hpc.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", help="a YAML file, or the name of one in configs/")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="such as agent.gamma=0.98")
    parser.add_argument("--run-dir", help="where results go (default: runs/<run.name>)")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--resume", action="store_true", help="continue the run if it exists, exactly")
    group.add_argument("--overwrite", action="store_true", help="delete an earlier run in this folder first")


def _clear(run_dir: Path) -> None:
    """Delete an earlier run, and nothing that is not one."""
    if not run_dir.exists():
        return
    if any(run_dir.iterdir()) and not (run_dir / "config.yaml").is_file():
        raise UserError(f"--overwrite: {run_dir} is not the folder of a run; choose another --run-dir")
    shutil.rmtree(run_dir)


def run(args: argparse.Namespace) -> int:
    from jaxrl_hpc import config as configs
    from jaxrl_hpc import machine
    from jaxrl_hpc.comm.ranks import world
    from jaxrl_hpc.envs.outside import mpi_ranks
    from jaxrl_hpc.train import EXIT_SAVED, train

    ranks = world()
    with ranks.guard():
        config = configs.load(args.config, args.overrides)
        run_dir = Path(args.run_dir or Path("runs") / config.run.name)
        if mpi_ranks.are_wanted(config.env) and machine.uses_ranks(config):
            raise UserError(
                "workflow.name: an environment of type mpi_program takes all ranks of the job, and "
                "rank 0 alone learns: use workflow.name=fused"
            )
        if mpi_ranks.are_wanted(config.env) and not ranks.first:
            mpi_ranks.serve()  # these ranks are the environment
            return 0
        if ranks.size > 1 and not (machine.uses_ranks(config) or mpi_ranks.are_wanted(config.env)):
            raise UserError(
                f"workflow {config.workflow.name!r} runs in one process, but this is a job of {ranks.size}: "  # type: ignore[attr-defined]
                "start it without mpirun, or use workflow.name=sharded"
            )
        if args.overwrite:
            machine.ranks_of(config).first_does(lambda: _clear(run_dir))
        outcome = train(config, run_dir, resume=args.resume)
        mpi_ranks.stop()
    if not outcome.finished:
        return EXIT_SAVED
    if not outcome.speaks:
        return 0
    s = outcome.summary or {}
    low, high = s["eval_return_ci95"]
    if "eval_improvement_iqm" in s:
        factor_low, factor_high = s["eval_improvement_ci95"]
        over = "seeds" if s["seeds"] > 1 else "episodes"
        interval = f", 95 % interval over {over} {factor_low:.3f} to {factor_high:.3f}"
        print(
            f"error {s['eval_improvement_iqm']:.3f} times smaller than the regulator's on the same noise"
            f"{interval} (the regulator itself is 1)"
        )
    print(
        f"{s['agent']} on {s['env']}: return {s['eval_return_iqm']:.2f} "
        f"(IQM of {s['seeds']} seed{'s' if s['seeds'] > 1 else ''}, 95 % interval {low:.2f} to {high:.2f})\n"
        f"{s['env_steps']:,} steps a seed in {s['wall_seconds']:.1f} s, after {s['compile_seconds']:.1f} s "
        f"to compile: {s['env_steps_per_second']:,.0f} steps/s, {s['updates_per_second']:,.0f} updates/s\n"
        f"results in {run_dir}; look at them with: jaxrl-hpc report {run_dir}"
    )
    return 0
