"""List the runs in a folder, newest first, or delete overwritten ones.

examples:
  jaxrl-hpc runs
  jaxrl-hpc runs /scratch/me/runs --json
  jaxrl-hpc runs --empty-trash            delete what --overwrite moved to runs/.trash

Progress and score are those of the newest checkpoint, or of the summary of a finished run.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from jaxrl_hpc.cli.table import table

if TYPE_CHECKING:
    from jaxrl_hpc.runs.listing import RunEntry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", default="runs", help="folder of runs (default: runs)")
    parser.add_argument("--json", action="store_true", help="print a JSON array instead of a table")
    parser.add_argument(
        "--empty-trash", action="store_true", help="delete the overwritten runs in the folder's .trash"
    )


def run(args: argparse.Namespace) -> int:
    from jaxrl_hpc.runs.listing import listing

    if args.empty_trash:
        return _empty_trash(args.folder, args.json)
    entries = listing(args.folder)
    if args.json:
        print(json.dumps([entry._asdict() for entry in entries]))
    elif not entries:
        print(f"there are no runs in {args.folder}")
    else:
        print(_table(entries))
    return 0


def _empty_trash(folder: str, as_json: bool) -> int:
    from jaxrl_hpc.runs.files import empty_trash
    from jaxrl_hpc.runs.listing import trash_folders

    done = {trash: empty_trash(trash) for trash in trash_folders(folder)}
    if as_json:
        found = [
            {"trash": str(trash), "runs": d.runs, "bytes": d.bytes, "left": [str(p) for p in d.left]}
            for trash, d in done.items()
        ]
        print(json.dumps(found))
        return 0
    if not done:
        print(f"there is no trash in {folder}")
    for trash, emptied in done.items():
        print(f"{trash}: deleted {len(emptied.runs)} run(s), {emptied.bytes / 1e6:,.1f} MB")
        for path in emptied.left:
            print(f"  {path} is left: it holds files that are not of a run")
    return 0


def _table(entries: list[RunEntry]) -> str:
    lines = [("run", "agent", "environment", "state", "steps", "score", "age")]
    for entry in entries:
        lines.append(
            (
                entry.path,
                entry.agent or "?",
                entry.env or "?",
                entry.state,
                _progress(entry),
                f"{entry.score:.2f}" if isinstance(entry.score, int | float) else "",
                _age(entry.age_seconds),
            )
        )
    return table(lines, "<<<<>>>", shrink=0)


def _progress(entry: RunEntry) -> str:
    if not isinstance(entry.env_steps, int):
        return ""
    known = isinstance(entry.total_env_steps, int) and entry.total_env_steps > 0 and entry.state != "finished"
    share = f" ({entry.env_steps / (entry.total_env_steps or 1):.0%})" if known else ""
    return f"{entry.env_steps:,}{share}"


def _age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
