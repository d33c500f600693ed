"""Act for the learner of an elastic run. Start any number of actors, at any time, on any
host that sees the run directory and can reach the learner's host.

examples:
  jaxrl-hpc train workflows/cartpole_impala_elastic --run-dir runs/e     the learner
  jaxrl-hpc actor runs/e                                                 an actor
  jaxrl-hpc actor runs/e --wait 3600                                     before its learner starts

Actors may be killed. After SIGTERM, SIGINT or SIGUSR1 an actor leaves as soon as the
learner has acknowledged its unrolls. If the learner ends, it waits for the next one.

exit codes: 0 the run is finished; 2 invalid input, or no learner; 75 this actor or its
learner was asked to stop: the same command continues.
"""

from __future__ import annotations

import argparse

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.user_code import TRUST_HELP


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", help="folder of the run")
    parser.add_argument(
        "--wait", type=float, default=120.0, metavar="S", help="seconds to wait for a learner (default 120)"
    )
    parser.add_argument("--trust", action="store_true", help=TRUST_HELP)


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.wait < 1e9:
        raise UserError(f"--wait: should be a number of seconds, 0 or more (it is {args.wait:g})")
    from jaxrl_hpc.runtime.acting import act

    return act(args.run_dir, args.wait, trust=args.trust, say=lambda text: print(text, flush=True))
