"""Measure speed against other libraries.

examples:
  jaxrl-hpc bench train --quick
  jaxrl-hpc bench replay --json bench_replay.json
  jaxrl-hpc bench threads

train: whole training loops, ours and other libraries'. replay: replay memories, ours and other libraries'.
pieces: where the time of an iteration goes. growth: how cost and memory grow with size. start: how long a
short run takes from the prompt. threads: the layer width from which more XLA threads help a single run.
`jaxrl-hpc bench train --help` says more; scripts/studies/performance.py turns the JSON files into
docs/performance.md.
"""

from __future__ import annotations

import argparse
import importlib

KINDS = {
    "train": ("jaxrl_hpc.bench.train", "training loops: ours and other libraries'"),
    "replay": ("jaxrl_hpc.bench.replay", "replay memories: ours and other libraries'"),
    "pieces": ("jaxrl_hpc.bench.profile", "where the time of a training iteration goes"),
    "growth": ("jaxrl_hpc.bench.growth", "how cost grows with environments, seeds, widths, replay, batch"),
    "start": ("jaxrl_hpc.bench.start", "a short run from the prompt to its summary, cold and warm"),
    "threads": ("jaxrl_hpc.bench.threads", "the layer width from which more threads help"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for name, (path, line) in KINDS.items():
        module = importlib.import_module(path)
        sub = kinds.add_parser(
            name,
            help=line,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(sub)


def run(args: argparse.Namespace) -> int:
    return importlib.import_module(KINDS[args.kind][0]).run(args)
