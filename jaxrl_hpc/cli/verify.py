"""Check all checksums of all checkpoints of a run, including those of ranks and actors.

examples:
  jaxrl-hpc verify runs/cartpole_dqn
  jaxrl-hpc verify runs/cartpole_dqn --json

exit codes: 0 the newest checkpoint is good; 1 it is damaged, or there is none; 2 this is not a run.
Nothing is changed. A run whose newest checkpoint is damaged is resumed from the newest good one.
"""

from __future__ import annotations

import argparse
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", help="folder of a run")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    from jaxrl_hpc.runs.verify import verify_run

    verdicts = verify_run(args.run_dir)
    newest_good = bool(verdicts) and verdicts[0].good
    if args.json:
        entries = [
            {"step": v.step, "good": v.good, "bytes": v.bytes, "problems": list(v.problems)} for v in verdicts
        ]
        print(json.dumps({"newest_is_good": newest_good, "checkpoints": entries}))
        return 0 if newest_good else 1
    for verdict in verdicts:
        step = "iteration ?" if verdict.step is None else f"iteration {verdict.step}"
        print(f"{step}: {f'good, {verdict.bytes / 1e6:,.1f} MB' if verdict.good else 'damaged'}")
        for problem in verdict.problems:
            print(f"  {problem}")
    if not verdicts:
        print(f"{args.run_dir} has no checkpoint")
    elif not any(verdict.good for verdict in verdicts):
        print(
            "no checkpoint is good: restore the files from a backup; --resume refuses to continue without one"
        )
    elif not newest_good:
        best = next(verdict.step for verdict in verdicts if verdict.good)
        print(f"--resume continues from iteration {best}, the newest good checkpoint")
    return 0 if newest_good else 1
