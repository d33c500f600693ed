"""jaxrl-hpc: config-driven reinforcement learning, from a laptop to an MPI cluster."""

from __future__ import annotations

import argparse
import functools
import importlib
import logging
import os
import sys

from jaxrl_hpc import __version__
from jaxrl_hpc.comm.exit_without_finalize import with_status
from jaxrl_hpc.errors import UserError, os_errors_told
from jaxrl_hpc.extras import missing_extras_told
from jaxrl_hpc.user_code import working_directory_last

# name -> (module, one line of help); modules are imported only when used
COMMANDS = {
    "train": ("jaxrl_hpc.cli.train", "train a config"),
    "evaluate": ("jaxrl_hpc.cli.evaluate", "play episodes with a trained run"),
    "runs": ("jaxrl_hpc.cli.runs", "list the runs in a folder; empty its trash"),
    "verify": ("jaxrl_hpc.cli.verify", "check all checkpoints of a run"),
    "sweep": ("jaxrl_hpc.cli.sweep", "many trials: plan, run, submit as a job array, collect"),
    "report": ("jaxrl_hpc.cli.report", "make an HTML page of one or several runs"),
    "export": ("jaxrl_hpc.cli.export", "a run's policy as a folder that acts without this package"),
    "play": ("jaxrl_hpc.cli.play", "watch a run: episodes as GIF and PNG"),
    "show": ("jaxrl_hpc.cli.show", "all settings of a config, with meanings"),
    "list": ("jaxrl_hpc.cli.listing", "what a config can name: agents, envs, workflows, configs"),
    "schema": ("jaxrl_hpc.cli.schema", "print the JSON schema of configs, for editors"),
    "doctor": ("jaxrl_hpc.cli.doctor", "check this installation: devices, versions, MPI"),
    "scaling": ("jaxrl_hpc.cli.scaling", "measure and model how a config scales over ranks and devices"),
    "bench": ("jaxrl_hpc.cli.bench", "measure speed against other libraries"),
    "surrogate": ("jaxrl_hpc.cli.surrogate", "fit and check the learned ExaBooster surrogate"),
}


def make_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The whole parser; with `only`, other commands' modules are not imported."""
    parser = argparse.ArgumentParser(
        prog="jaxrl-hpc",
        description=__doc__,
        epilog="Example: jaxrl-hpc train cartpole_dqn run.seeds=4 && jaxrl-hpc report runs/cartpole_dqn",
    )
    parser.add_argument("--version", action="version", version=f"jaxrl_hpc {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (path, line) in COMMANDS.items():
        # the details of a command come from its module, and only its own are needed
        module = importlib.import_module(path) if name == only else None
        sub = commands.add_parser(
            name,
            help=line,
            description=module.__doc__ if module else line,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if module:
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    return parser


def main(argv: list[str] | None = None) -> int:
    """The command line -> exit status."""
    return with_status(functools.partial(_run, argv))


def _run(argv: list[str] | None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    # XLA's own banners (slow compiles, CPU features) are for its developers; errors reach us as exceptions
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    named = next((a for a in arguments if not a.startswith("-")), None)
    parser = make_parser(named if named in COMMANDS else None)
    args, rest = parser.parse_known_args(arguments)
    if rest and (not hasattr(args, "overrides") or any(a.startswith("-") or "=" not in a for a in rest)):
        parser.error(f"unrecognised arguments: {' '.join(rest)}")
    if rest:
        args.overrides += rest  # key=value after an option, which argparse does not take
    try:
        with os_errors_told(), missing_extras_told():
            return args.run(args)
    except UserError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # the reader (such as head) has gone; keep the interpreter from complaining at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    working_directory_last()
    sys.exit(main())
