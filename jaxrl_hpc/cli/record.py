"""Record transitions of a run's policy as a dataset for `workflow.name=offline`.

examples:
  jaxrl-hpc record runs/pendulum_td3 --steps 50000 --out pendulum.parquet
  jaxrl-hpc record runs/pendulum_td3 --random 0.5 --out mixed.parquet
  jaxrl-hpc train pendulum_td3_bc workflow.dataset=mixed.parquet

docs/offline.md has the format of the file.
"""

from __future__ import annotations

import argparse

from jaxrl_hpc.user_code import TRUST_HELP

MAX_STEPS = 100_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", help="folder of a run")
    parser.add_argument("--steps", type=int, default=100_000, help="transitions (default 100,000)")
    parser.add_argument("--out", metavar="FILE", required=True, help="the Parquet file to write")
    parser.add_argument(
        "--policy",
        choices=["exploring", "greedy"],
        default="exploring",
        help="exploring (default), or greedy for its best actions",
    )
    parser.add_argument(
        "--random",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="fraction of episodes with random actions instead (default 0)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of start states and random draws (default 0)"
    )
    parser.add_argument("--run-seed", type=int, help="seed of the run that acts (default: the first)")
    parser.add_argument("--trust", action="store_true", help=TRUST_HELP)


def run(args: argparse.Namespace) -> int:
    from jaxrl_hpc.errors import UserError
    from jaxrl_hpc.runs.directory import RunDirectory

    if not 1 <= args.steps <= MAX_STEPS:
        raise UserError(f"--steps: should be from 1 to {MAX_STEPS:,} (it is {args.steps:,})")
    if not 0 <= args.random <= 1:
        raise UserError(f"--random: should be from 0 to 1 (it is {args.random})")
    if not 0 <= args.seed < 2**31:
        raise UserError(f"--seed: should be from 0 to 2^31 - 1 (it is {args.seed})")
    RunDirectory.existing(args.run_dir)  # refused before JAX is loaded

    from jaxrl_hpc.runtime.record import record_run

    found = record_run(
        args.run_dir,
        args.out,
        args.steps,
        policy=args.policy,
        random=args.random,
        seed=args.seed,
        lane_seed=args.run_seed,
        trust=args.trust,
    )
    size = found.path.stat().st_size / 1e6
    print(f"wrote {found.path} ({size:,.1f} MB): {found.steps:,} steps")
    if found.episodes:
        print(f"{found.episodes:,} whole episodes, mean return {found.mean_return:.2f}")
    return 0
