"""Play greedy episodes with the newest checkpoint of a run, on random keys that training never used.

examples:
  jaxrl-hpc evaluate runs/cartpole_dqn --episodes 200
  jaxrl-hpc evaluate runs/exabooster_ppo env.fit=1       on another environment than it was trained on
"""

from __future__ import annotations

import argparse
import json

from jaxrl_hpc.user_code import TRUST_HELP

MAX_EPISODES = 1_000_000  # per seed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", help="folder of a run")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="env.KEY=VALUE", help="settings of the environment"
    )
    parser.add_argument("--episodes", type=int, default=100, help="episodes per seed (default 100)")
    parser.add_argument("--seed", type=int, default=1, help="selects the start states (default 1)")
    parser.add_argument("--trust", action="store_true", help=TRUST_HELP)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    from jaxrl_hpc.comm.ranks import world
    from jaxrl_hpc.errors import UserError, os_errors_told
    from jaxrl_hpc.runs.directory import RunDirectory

    if not 1 <= args.episodes <= MAX_EPISODES:
        raise UserError(f"--episodes: should be from 1 to {MAX_EPISODES:,} (it is {args.episodes:,})")
    if not 0 <= args.seed < 2**31 - 1:
        raise UserError(f"--seed: should be from 0 to 2^31 - 2 (it is {args.seed})")
    ranks = world()
    with ranks.guard(), os_errors_told():
        RunDirectory.existing(args.run_dir)  # refused before JAX is loaded

        from jaxrl_hpc.envs.external import mpi_ranks
        from jaxrl_hpc.runtime.evaluation import evaluate_run

        if ranks.size > 1 and not ranks.first:
            mpi_ranks.serve()  # only an environment that is a parallel program needs more than one rank
            return 0
        result = evaluate_run(args.run_dir, args.episodes, args.seed, args.overrides, trust=args.trust)
        mpi_ranks.stop()
    if args.json:
        print(json.dumps(result))
        return 0
    low, high = result["eval_return_interval"]
    print(f"{result['env']} after {result['env_steps']:,} steps, {args.episodes} episodes per seed")
    for seed, value in result["eval_return_per_seed"].items():
        print(f"  seed {seed}: {value:.2f}")
    print(f"return {result['eval_return_score']:.2f} ({low:.2f} to {high:.2f}; {result['eval_spread']})")
    for name in result:
        if name.endswith("_score") and name != "eval_return_score":
            print(f"{name.removeprefix('eval_').removesuffix('_score')} {result[name]:.3f}")
    return 0
