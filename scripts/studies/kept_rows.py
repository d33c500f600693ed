"""Rows of a page whose runs are not stored here: they stay as written, with the commit that made them.

So one entry of a study can be run again where all of them would take too long. A column that the page did not
have yet is empty in kept rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

RENAMED = {"IQM [95 % interval]": "score [interval]"}  # what earlier pages called a column


class KeptRow(NamedTuple):
    """An entry's line in the table of results, and in that of commands."""

    result: str
    command: str


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def _tables(text: str) -> Iterable[list[dict[str, str]]]:
    """Every table of a page as rows by column."""
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line.startswith("|")]
        if len(lines) > 2:
            head = [RENAMED.get(name, name) for name in _cells(lines[0])]
            yield [dict(zip(head, _cells(line), strict=True)) for line in lines[2:]]


def kept_rows(page: Path, columns: Sequence[str], wanted: Iterable[str]) -> dict[str, KeptRow]:
    """By entry, of those wanted that the page has in both tables."""
    if not page.exists():
        return {}
    results: dict[str, str] = {}
    commands: dict[str, str] = {}
    for table in _tables(page.read_text()):
        for row in table:
            name = row.get("entry", "")
            if "score [interval]" in row:
                results[name] = "| " + " | ".join(row.get(column, "–") for column in columns) + " |"
            elif command := next((key for key in row if key.startswith("command")), ""):
                commands[name] = f"| {name} | {row[command]} | {row['commit']} |"
    return {n: KeptRow(results[n], commands[n]) for n in wanted if n in results and n in commands}
