"""What scripts of studies share: an entry of a learning study, and command lines."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from page_table import with_head  # beside this file

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


class Entry(NamedTuple):
    """One config with its seeds and its target."""

    name: str
    config: str
    seeds: int
    target: float | None = None  # final evaluation; None: the curve is the result
    overrides: tuple[str, ...] = ()


def run(
    text: str | None,
    studies: Mapping[str, Any],
    train: Callable[[str, str | None], None],
    write_page: Callable[[str], None],
    head: Callable[[str], list[str]],
) -> None:
    """Train what is missing of the studies named on the command line, and write their pages."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", choices=[*studies, []], metavar="STUDY")
    parser.add_argument("--entry", help="train only this entry")
    parser.add_argument("--page", action="store_true", help="only write the pages")
    parser.add_argument(
        "--text", action="store_true", help="only write titles and descriptions, of all pages"
    )
    parser.add_argument("--list", action="store_true", help="show the studies")
    args = parser.parse_args()
    if args.text:
        for name in studies:
            page = RESULTS / f"{name}.md"
            if page.exists():
                page.write_text(with_head(page.read_text(), head(name)))
        return
    if args.list or not args.studies:
        for name, study in studies.items():
            print(f"{name:26s} {study.title}: {', '.join(e.name for e in study.entries)}")
        return
    for name in args.studies:
        if not args.page:
            train(name, args.entry)
        write_page(name)


def run_on_ranks(
    text: str | None,
    stored: Path,
    on_ranks: Callable[[], None],
    measure: Callable[[], dict[str, Any]],
    write: Callable[[dict[str, Any]], None],
) -> None:
    """Measure by jobs of this very script and keep the numbers, or take the stored ones; write the page."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="from the stored numbers")
    parser.add_argument("--ranks", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ranks:
        on_ranks()
        return
    data = json.loads(stored.read_text()) if args.page else measure()
    stored.write_text(json.dumps(data, indent=1) + "\n")
    write(data)
    print(f"written to {stored.with_suffix('.md')}")
