"""Play greedy episodes with the newest checkpoint of a run, with keys that training never used.

examples:
  jaxrl-hpc evaluate runs/cartpole_dqn --episodes 200
  jaxrl-hpc evaluate runs/exabooster_ppo env.fit=1       on another environment than it was trained on
"""

from __future__ import annotations

import argparse
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", help="folder of a run")
    parser.add_argument("overrides", nargs="*", metavar="env.KEY=VALUE", help="settings of the environment")
    parser.add_argument("--episodes", type=int, default=100, help="episodes per seed (default 100)")
    parser.add_argument("--seed", type=int, default=1, help="which set of start states (default 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    from jaxrl_hpc.comm.ranks import world
    from jaxrl_hpc.envs.outside import mpi_ranks
    from jaxrl_hpc.errors import UserError
    from jaxrl_hpc.evaluation import evaluate_run

    if args.episodes < 1:
        raise UserError(f"--episodes: should be at least 1 (it is {args.episodes})")
    ranks = world()
    if ranks.size > 1 and not ranks.first:
        mpi_ranks.serve()  # only an environment that is a parallel program needs more than one rank
        return 0
    with ranks.guard():
        result = evaluate_run(args.run_dir, args.episodes, args.seed, args.overrides)
        mpi_ranks.stop()
    if args.json:
        print(json.dumps(result))
        return 0
    low, high = result["eval_return_ci95"]
    print(f"{result['env']} after {result['env_steps']:,} steps, {args.episodes} episodes a seed")
    for seed, value in result["eval_return_per_seed"].items():
        print(f"  seed {seed}: {value:.2f}")
    print(f"return {result['eval_return_iqm']:.2f} (IQM, 95 % interval {low:.2f} to {high:.2f})")
    for name in result:
        if name.endswith("_iqm") and name != "eval_return_iqm":
            print(f"{name.removeprefix('eval_').removesuffix('_iqm')} {result[name]:.3f} (IQM)")
    return 0
