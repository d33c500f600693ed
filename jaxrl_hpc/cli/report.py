"""Make one self-contained HTML page of a run, or a comparison of several.

examples:
  jaxrl-hpc report runs/cartpole_dqn
  jaxrl-hpc report runs/a runs/b --output comparison.html
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dirs", nargs="+", metavar="RUN_DIR", help="folders of runs")
    parser.add_argument("--output", help="the page (default: report.html in the first run's folder)")


def run(args: argparse.Namespace) -> int:
    from jaxrl_hpc.io.report import write_report

    output = Path(args.output) if args.output else Path(args.run_dirs[0]) / "report.html"
    write_report([Path(d) for d in args.run_dirs], output)
    print(f"wrote {output}")
    return 0
