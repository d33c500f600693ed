"""Fit a learned plant model for ExaBooster, or check one against its gates.

examples:
  jaxrl-hpc surrogate fit --out surrogate.bin
  jaxrl-hpc surrogate fit --csv "data release.csv" --out surrogate.bin
  jaxrl-hpc surrogate check surrogate.bin
  jaxrl-hpc train exabooster_dqn env.model=surrogate env.surrogate=surrogate.bin
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    fit = commands.add_parser("fit", help="train the LSTM, check its gates, save it")
    fit.add_argument("--out", default="surrogate.bin", help="file to write (default surrogate.bin)")
    fit.add_argument("--width", type=int, default=64, help="units in a layer (default 64; EXARL: 256)")
    fit.add_argument("--layers", type=int, default=1, help="LSTM layers (default 1; EXARL: 3)")
    fit.add_argument("--updates", type=int, default=3000, help="gradient steps (default 3000)")
    fit.add_argument("--batch", type=int, default=32, help="trajectories in an update (default 32)")
    fit.add_argument("--learning-rate", type=float, default=4e-3, help="peak of the schedule (default 0.004)")
    check = commands.add_parser("check", help="check the gates of a saved surrogate")
    check.add_argument("file", help="file of `surrogate fit`")
    for command in (fit, check):
        command.add_argument("--csv", help="recording in BOOSTR's format (default: the generator's data)")
        command.add_argument("--rows", type=int, default=250_000, help="ticks to use (default 250000)")
        command.add_argument(
            "--seed", type=int, default=0, help="seed of data, training and free run (default 0)"
        )


def run(args: argparse.Namespace) -> int:
    from jaxrl_hpc.errors import UserError

    if args.action == "fit" and not Path(args.out).parent.is_dir():
        raise UserError(f"--out: there is no folder {Path(args.out).parent}")
    if args.action == "check" and not Path(args.file).is_file():
        raise UserError(
            f"surrogate {args.file}: no such file; make one with `jaxrl-hpc surrogate fit --out {args.file}`"
        )

    import jax

    from jaxrl_hpc.envs.exabooster import fitting, gates, surrogate

    bounds = {
        "rows": (2000, 100_000_000),
        "width": (1, surrogate.MAX_SIZE),
        "layers": (1, 100),
        "updates": (1, 10_000_000),
        "batch": (1, 1_000_000),
        "seed": (0, 2**31 - 1),
        "learning_rate": (0.0, 1.0),
    }
    for name, (low, high) in bounds.items():
        if not low <= getattr(args, name, low) <= high:
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"{option}: should be from {low} to {high} (it is {getattr(args, name)})")
    if args.action == "check":  # checked first: generating data takes longer
        network, report = surrogate.load(args.file)
    data_key, train_key, check_key = jax.random.split(jax.random.key(args.seed), 3)
    data, reference = fitting.load_data(data_key, args.csv, args.rows)
    if args.action == "fit":
        settings = fitting.Settings(
            args.width, args.layers, args.updates, args.batch, learning_rate=args.learning_rate
        )
        network, report = fitting.train(train_key, data, settings, lambda line: print(line, flush=True))
    results = gates.check(check_key, network, data, reference)
    print(gates.table(results))
    passed = all(gate.passed for gate in results)
    if args.action == "fit":
        report |= {"data": args.csv or "generator", "gates": [gate._asdict() for gate in results]}
        surrogate.save(args.out, network, report)
        print(f"saved {args.out}" + ("" if passed else "; not all gates passed: more --updates may help"))
    return 0 if passed else 1
