"""What the scripts of learning studies share: an entry, and the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


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
) -> None:
    """Train what is missing of the studies named on the command line, and write their pages."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", choices=[*studies, []], metavar="STUDY")
    parser.add_argument("--entry", help="train only this entry")
    parser.add_argument("--page", action="store_true", help="only write the pages")
    parser.add_argument("--list", action="store_true", help="show the studies")
    args = parser.parse_args()
    if args.list or not args.studies:
        for name, study in studies.items():
            print(f"{name:26s} {study.title}: {', '.join(e.name for e in study.entries)}")
        return
    for name in args.studies:
        if not args.page:
            train(name, args.entry)
        write_page(name)
