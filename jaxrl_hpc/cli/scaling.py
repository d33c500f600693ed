"""Measure how a sharded config scales on this machine, and model how it would on more nodes; or find how many
ranks of a job should learn and how many should act.

examples:
  jaxrl-hpc scaling workflows/cartpole_ppo_sharded --ranks 1,2
  jaxrl-hpc scaling workflows/cartpole_dqn_sharded --ranks 1,2,4 --mode strong
  jaxrl-hpc scaling workflows/cartpole_ppo_sharded --ranks 1,2 --latency 1.3
  jaxrl-hpc scaling workflows/cartpole_impala --split 16

Runs the config on every number of ranks and devices with both engines, in turns, and as many separate runs
side by side, one per core; traces how much of an iteration is waiting and exchange; measures collectives;
fits compute time, latency and bandwidth; writes scaling.json and scaling.png. Efficiency is relative to the
separate runs, and to a single run. weak: each worker gets the full config; strong: the config is divided
among workers. Each rank gets its own core while there are enough. Only this machine is measured: the table
for more nodes comes from the model, for the given network.

--split RANKS measures the cost of acting and learning (one process, a few seconds), and uses a model of the
job to find how many of RANKS ranks should learn; writes split.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from jaxrl_hpc.errors import UserError

SPLIT = ("async", "rma", "rma_queue", "central_inference", "dyna")  # workflows with actors and learners


def _numbers(text: str) -> list[int]:
    values = [int(part) for part in text.split(",") if part.strip().isdigit()]
    if not values or any(v < 1 for v in values) or len(values) != len(text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 1,2,4")
    return values


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", help="a YAML file, or the name of one in configs/")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="settings, such as workflow.num_envs=96"
    )
    parser.add_argument(
        "--ranks", type=_numbers, default=[1, 2], help="numbers of ranks, such as 1,2,4 (default: 1,2)"
    )
    parser.add_argument(
        "--devices", type=_numbers, default=[1], help="devices per rank, such as 1,2 (default: 1)"
    )
    parser.add_argument(
        "--engines",
        type=lambda text: text.split(","),
        default=["mpi", "jax"],
        help="engines to connect ranks (default: mpi,jax)",
    )
    parser.add_argument("--mode", choices=("weak", "strong"), default="weak")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one measurement (default: 3)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds over all layouts (default: 3)")
    parser.add_argument("--latency", type=float, default=2.0, help="latency of the network, µs (default: 2)")
    parser.add_argument(
        "--bandwidth", type=float, default=12.5, help="bandwidth of a link, GB/s (default: 12.5)"
    )
    parser.add_argument(
        "--split", type=int, metavar="RANKS", help="recommend how many of RANKS ranks should learn"
    )
    parser.add_argument(
        "--cores", type=int, default=0, help="cores shared by the ranks of --split (0: one each)"
    )
    parser.add_argument("--mpiexec", help="the launcher (default: that of this environment)")
    parser.add_argument("--out", type=Path, help="folder for results (default: runs/scaling/<config>)")


def run(args: argparse.Namespace) -> int:
    from jaxrl_hpc.config.sources import read_source

    read_source(args.config, args.overrides)  # refused before JAX is loaded

    from jaxrl_hpc import config as configs
    from jaxrl_hpc.cli.doctor_checks import find_mpiexec
    from jaxrl_hpc.scaling import figure, study
    from jaxrl_hpc.scaling.model import NetworkModel

    config = configs.load(args.config, args.overrides)
    folder = args.out or Path("runs") / "scaling" / config.run.name
    if args.split is not None:
        return _split(config, args, folder)
    if not config.workflow.resources().mpi_in_programs:
        raise UserError(
            "scaling: use a config with workflow.name=sharded, or --split RANKS with actors and learners"
        )
    launcher = args.mpiexec or find_mpiexec()
    if launcher is None and max(args.ranks) > 1:
        raise UserError("scaling: no mpiexec found; jaxrl-hpc doctor says how to get one")
    if not set(args.engines) <= {"mpi", "jax"}:
        raise UserError(f"--engines: should be mpi, jax or both (it is {','.join(args.engines)})")
    network = NetworkModel(1e-6 * args.latency, 1e9 * args.bandwidth)
    request = study.Request(
        config,
        args.ranks,
        args.devices,
        args.mode,
        args.seconds,
        args.rounds,
        launcher or "",
        network,
        args.engines,
    )
    results = study.collect(request, lambda text: print(text, file=sys.stderr))
    report = study.analyse(request, results) | {"config": config.to_dict()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scaling.json").write_text(json.dumps(report, indent=1) + "\n")
    figure.draw(report, folder / "scaling.png")
    print(figure.table(report))
    if table := figure.trace_table(report):
        print("\n" + table)
    if report["collectives"]:
        print("\n" + figure.collectives_table(report))
    print(f"\nwritten to {folder}/scaling.json and scaling.png")
    return 0


def _split(config: Any, args: argparse.Namespace, folder: Path) -> int:
    """Roles for a job of so many ranks."""
    from jaxrl_hpc.runtime import machine
    from jaxrl_hpc.runtime.build import build
    from jaxrl_hpc.scaling import measure, split
    from jaxrl_hpc.scaling.costs import JobPlan
    from jaxrl_hpc.scaling.model import NetworkModel

    flow: Any = config.workflow
    if flow.name not in SPLIT:
        raise UserError(f"scaling --split: workflow {flow.name!r} has no actors and learners to divide")
    if args.split < 2:
        raise UserError(f"scaling --split: {args.split} rank(s) cannot be divided; at least 2 are needed")
    machine.prepare(config, 1)
    network = NetworkModel(1e-6 * args.latency, 1e9 * args.bandwidth)
    costs = measure.costs_of(config, build(config), network, args.cores)
    plan = JobPlan(flow.name, 1, in_flight=flow.in_flight, batch=flow.batch_trajectories)
    best, choices = split.recommend(costs, plan, args.split, flow.learner_mode == "shared")
    folder.mkdir(parents=True, exist_ok=True)
    found = split.report(costs, best, choices) | {"config": config.to_dict()}
    (folder / "split.json").write_text(json.dumps(found, indent=1) + "\n")
    print(
        f"an unroll of {costs.length} steps × {costs.copies} copies takes an actor "
        f"{1e3 * (costs.acting + costs.waiting):.2f} ms and a learner {1e3 * costs.update:.2f} ms\n"
    )
    print(split.table(best, choices))
    print(
        f"\nmpirun -n {args.split} jaxrl-hpc train {args.config} workflow.learners={best.learners}"
        f"\nwritten to {folder}/split.json"
    )
    return 0
