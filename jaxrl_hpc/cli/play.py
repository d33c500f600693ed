"""Watch a run play: episodes as an animated GIF and a strip of pictures, for environments that can be drawn.

examples:
  jaxrl-hpc play runs/cartpole_dqn                      into runs/cartpole_dqn/plots
  jaxrl-hpc play runs/breakout_dqn --episodes 3 --out pictures
  jaxrl-hpc play runs/exabooster_ppo                    the episode beside the regulator's

The strip shows up in the run's report.
"""

from __future__ import annotations

import argparse

from jaxrl_hpc.user_code import TRUST_HELP

BOUNDS = {"episodes": (1, 1000), "frames": (1, 10_000), "seed": (0, 2**31 - 1)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", help="folder of a run")
    parser.add_argument("--out", metavar="DIR", help="output folder (default: plots/ of the run)")
    parser.add_argument("--episodes", type=int, default=1, help="episodes in the GIF (default 1)")
    parser.add_argument("--frames", type=int, default=240, help="most pictures in the GIF (default 240)")
    parser.add_argument("--seed", type=int, default=0, help="selects the start states (default 0)")
    parser.add_argument("--run-seed", type=int, help="seed of the run to play (default: the first)")
    parser.add_argument("--trust", action="store_true", help=TRUST_HELP)


def run(args: argparse.Namespace) -> int:
    from jaxrl_hpc.errors import UserError
    from jaxrl_hpc.runs.directory import RunDirectory

    for name, (low, high) in BOUNDS.items():
        if not low <= getattr(args, name) <= high:
            raise UserError(f"--{name}: should be from {low} to {high:,} (it is {getattr(args, name):,})")
    RunDirectory.existing(args.run_dir)  # refused before JAX is loaded

    from jaxrl_hpc.runtime.play import play_run

    options = (args.out, args.episodes, args.seed, args.frames, args.run_seed)
    for path in play_run(args.run_dir, *options, trust=args.trust):
        print(f"wrote {path} ({path.stat().st_size / 1000:,.0f} kB)")
    return 0
