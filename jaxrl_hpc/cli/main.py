"""jaxrl-hpc: config-driven reinforcement learning, from a laptop to an MPI cluster."""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import importlib
import itertools
import logging
import os
import re
import signal
import sys
import textwrap
import threading
from collections.abc import Iterator
from types import FrameType

from jaxrl_hpc import __version__
from jaxrl_hpc.comm.exit_without_finalize import with_status
from jaxrl_hpc.errors import UserError, os_errors_told
from jaxrl_hpc.extras import missing_extras_told
from jaxrl_hpc.user_code import working_directory_last

# name -> (module, one line of help); modules are imported only when used
COMMANDS = {
    "list": ("jaxrl_hpc.cli.listing", "list configs, agents, envs, workflows"),
    "show": ("jaxrl_hpc.cli.show", "show all settings of a config and their meaning"),
    "train": ("jaxrl_hpc.cli.train", "train a config"),
    "actor": ("jaxrl_hpc.cli.actor", "act for the learner of an elastic run"),
    "elastic": ("jaxrl_hpc.cli.elastic", "submit an elastic run: a learner's job and an array of actors"),
    "runs": ("jaxrl_hpc.cli.runs", "list the runs in a folder; empty its trash"),
    "evaluate": ("jaxrl_hpc.cli.evaluate", "play episodes with a trained run"),
    "report": ("jaxrl_hpc.cli.report", "make an HTML page from one or several runs"),
    "play": ("jaxrl_hpc.cli.play", "watch a run: episodes as GIF and PNG"),
    "record": ("jaxrl_hpc.cli.record", "record a run's policy as a dataset for offline learning"),
    "export": ("jaxrl_hpc.cli.export", "export a run's policy to a folder that works without this package"),
    "sweep": ("jaxrl_hpc.cli.sweep", "plan, run, submit and collect many trials"),
    "verify": ("jaxrl_hpc.cli.verify", "check all checkpoints of a run"),
    "doctor": ("jaxrl_hpc.cli.doctor", "check this installation: devices, versions, MPI"),
    "schema": ("jaxrl_hpc.cli.schema", "print the JSON schema of configs, for editors"),
    "scaling": ("jaxrl_hpc.cli.scaling", "measure and model how a config scales over ranks and devices"),
    "bench": ("jaxrl_hpc.cli.bench", "measure speed against other libraries"),
    "surrogate": ("jaxrl_hpc.cli.surrogate", "fit and check the learned ExaBooster surrogate"),
}

INTERRUPTED = 128 + signal.SIGINT  # exit status, as shells have it


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Module docstrings in the width of the terminal: paragraphs wrap, examples stay lines."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._action_max_length = 13  # argparse forgets the indentation of commands

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for is_plain, group in itertools.groupby(
            text.splitlines(), key=lambda line: line[:1] not in ("", " ")
        ):
            if is_plain:
                lines += textwrap.wrap(" ".join(group), width)
            else:
                lines += [short for line in group for short in self._example(line, width)]
        return "\n".join(f"{indent}{line}" for line in lines)

    @staticmethod
    def _example(line: str, width: int) -> list[str]:
        """A command with a remark behind it; the remark goes to the next line if there is no room."""
        found = re.fullmatch(r"(  .*?\S) {2,}(\S.*)", line)
        if len(line) <= width or not found:
            return [line]
        return [found[1], f"      {found[2]}"]


def make_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The whole parser; with `only`, other commands' modules are not imported."""
    parser = argparse.ArgumentParser(
        prog="jaxrl-hpc",
        description=__doc__,
        formatter_class=HelpFormatter,
        epilog="examples:\n  jaxrl-hpc list configs cartpole\n  jaxrl-hpc train cartpole_dqn run.seeds=4\n"
        "  jaxrl-hpc report runs/cartpole_dqn",
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
            formatter_class=HelpFormatter,
        )
        if module:
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    return parser


def main(argv: list[str] | None = None) -> int:
    """The command line -> exit status."""
    with _leaving_when_interrupted(), _collecting_rarely(to_the_end=argv is None):
        return with_status(functools.partial(_run, argv))


@contextlib.contextmanager
def _leaving_when_interrupted() -> Iterator[None]:
    """Handle Ctrl-C while modules are imported and programs are built: an exception would show a traceback,
    or be swallowed by a library that catches everything. Where SIGINT is ignored or already handled, nothing
    changes."""
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if ours:
        signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def _collecting_rarely(to_the_end: bool) -> Iterator[None]:
    """Importing and tracing make a million long-lived objects: searching them for garbage repeatedly takes an
    eighth of a short run, and so does the search when the interpreter ends."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if to_the_end:
            gc.freeze()


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def _run(argv: list[str] | None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    # XLA's banners (slow compilation, CPU features) are for its developers; errors reach us as exceptions
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    named = next((a for a in arguments if not a.startswith("-")), None)
    parser = make_parser(named if named in COMMANDS else None)
    args, rest = parser.parse_known_args(arguments)
    if rest and (not hasattr(args, "overrides") or any(a.startswith("-") or "=" not in a for a in rest)):
        parser.error(f"unrecognised arguments: {' '.join(rest)}")
    if rest:
        args.overrides += rest  # key=value after an option, which argparse does not take
    if args.command != "train" and signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # it may have something to clean up
    try:
        with os_errors_told(), missing_extras_told():
            return args.run(args)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
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
