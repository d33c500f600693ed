"""Make a self-contained HTML page of a run, a sweep, a comparison of runs, or a folder of runs.

examples:
  jaxrl-hpc report runs/cartpole_dqn
  jaxrl-hpc report runs/a runs/b --output comparison.html
  jaxrl-hpc report runs/sweeps/cartpole_dqn
  jaxrl-hpc report runs                             runs/index.html: all runs, with sparklines
  jaxrl-hpc report runs/cartpole_dqn --watch        while it trains: the page is updated and reloads itself
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl_hpc.user_code import TRUST_HELP

if TYPE_CHECKING:
    from jaxrl_hpc.report.data import RunData


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_dirs",
        nargs="+",
        metavar="RUN_DIR",
        help="folders of runs, the folder of one sweep, or one folder that contains runs",
    )
    parser.add_argument(
        "--output",
        help="the page to write (default: report.html in the first folder; index.html for a folder of runs)",
    )
    parser.add_argument(
        "--watch",
        type=int,
        nargs="?",
        const=10,
        metavar="SECONDS",
        help="update the page until all runs have finished (default: every 10 s)",
    )
    parser.add_argument("--trust", action="store_true", help=TRUST_HELP)


def run(args: argparse.Namespace) -> int:
    folders = [Path(folder) for folder in args.run_dirs]
    from jaxrl_hpc.runs.directory import RunDirectory
    from jaxrl_hpc.runs.listing import is_folder_of_runs

    if is_folder_of_runs(folders):
        return overview(folders[0], args)
    output = Path(args.output) if args.output else folders[0] / "report.html"
    sweeps = [folder for folder in folders if (folder / "plans").is_dir()]
    if sweeps:
        from jaxrl_hpc.errors import UserError

        if len(folders) > 1:
            raise UserError(
                f"{sweeps[0]} is a sweep, which has a page of its own: give it as the only folder"
            )
        if args.watch is not None:
            raise UserError(
                "--watch: works for runs, not for sweeps: run the command again to update a sweep's page"
            )

        from jaxrl_hpc.sweeps.report import write_sweep_report

        write_sweep_report(sweeps[0], output, trust=args.trust)
    else:
        for folder in folders:
            RunDirectory.existing(folder)  # refused before JAX is loaded

        from jaxrl_hpc.report.page import write_report

        if args.watch is not None:
            watch(folders, output, args.watch)
        else:
            write_report(folders, output, base_of=shipped)
    print(f"wrote {output}")
    return 0


def overview(folder: Path, args: argparse.Namespace) -> int:
    """The page of all runs in a folder."""
    from jaxrl_hpc.errors import UserError
    from jaxrl_hpc.report.overview import write_overview
    from jaxrl_hpc.runs.listing import listing

    if args.output:
        raise UserError("--output: the page of a folder is its index.html, so that its links work")
    if args.watch is not None:
        repeat(
            lambda every: write_overview(folder, every),
            args.watch,
            done=lambda: all(entry.state != "training" for entry in listing(folder)),
        )
    print(f"wrote {write_overview(folder)}")
    return 0


def watch(folders: list[Path], output: Path, every: int) -> None:
    """Write the page until every run has its summary; the last one does not reload itself."""
    from jaxrl_hpc.report.page import write_report

    def write(seconds: int) -> Path:
        return write_report(folders, output, reload_seconds=seconds, base_of=shipped)

    repeat(write, every, done=lambda: all((folder / "summary.json").is_file() for folder in folders))
    write(0)


def repeat(write: Callable[[int], Path], every: int, done: Callable[[], bool]) -> None:
    """Write a page every few seconds, until nothing is left to watch or the user presses Ctrl-C."""
    from jaxrl_hpc.errors import UserError
    from jaxrl_hpc.report.data import NoMetricsYet

    if not 1 <= every <= 3600:
        raise UserError(f"--watch: should be from 1 to 3600 seconds (it is {every})")
    try:
        while not done():
            try:
                made = f"wrote {write(every)}"
            except NoMetricsYet as nothing:
                made = str(nothing).partition(":")[0]
            print(f"{made}; again in {every} s, Ctrl-C ends", flush=True)
            time.sleep(every)
    except KeyboardInterrupt:
        print()


def shipped(run: RunData) -> tuple[str, dict[str, Any]] | None:
    """The config file that the run has the name of, completed by its defaults; None if there is none."""
    from jaxrl_hpc.config.sources import config_files, name_run
    from jaxrl_hpc.errors import UserError
    from jaxrl_hpc.read_files import read_yaml
    from jaxrl_hpc.schema import flatten

    name = str(run.setting("run", "name"))
    path = config_files().get(name)
    if path is None:
        return None
    try:
        data = read_yaml(path)
        parts = [data.get(section, {}).get("name") for section in ("agent", "env")]
        if parts != [run.agent, run.env] or any(":" in str(part) for part in parts):
            return None  # another config of that name, or code that a page must not run
        name_run(data, path)
        from jaxrl_hpc.config.files import settings_of

        return name, flatten(settings_of(data).to_dict())
    except (UserError, AttributeError):
        return None
