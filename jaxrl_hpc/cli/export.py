"""Export a run's policy: a folder with program, weights and a loader that needs only jax, numpy, flatbuffers.

examples:
  jaxrl-hpc export runs/cartpole_dqn                          into runs/cartpole_dqn/export
  jaxrl-hpc export runs/exabooster_ppo --out booster_policy --seed 3

use: from policy import load
     policy = load("booster_policy")
     action, carry = policy.act(obs, None)
"""

from __future__ import annotations

import argparse

from jaxrl_hpc.user_code import TRUST_HELP


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", help="folder of a run")
    parser.add_argument("--out", metavar="DIR", help="output folder (default: export/ in the run's folder)")
    parser.add_argument("--seed", type=int, help="seed of the run to export (default: the first)")
    parser.add_argument("--trust", action="store_true", help=TRUST_HELP)


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from jaxrl_hpc.runs.directory import RunDirectory

    RunDirectory.existing(args.run_dir)  # refused before JAX is loaded

    from jaxrl_hpc.export import export_run

    metadata = export_run(args.run_dir, args.out, args.seed, trust=args.trust)
    folder = Path(args.out) if args.out else Path(args.run_dir) / "export"
    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    kinds = " or ".join(metadata["programs"])
    print(
        f"{metadata['agent']} on {metadata['env']}, seed {metadata['seed']}, after "
        f"{metadata['env_steps']:,} steps: {folder} ({size / 1000:,.0f} kB, acts {kinds})"
        "\nchecked against the run on random observations"
    )
    return 0
