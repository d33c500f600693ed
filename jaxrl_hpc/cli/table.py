"""Plain tables that fit the terminal: long cells are cut with …, except in a pipe."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence

GAP = "  "


def width() -> int:
    """Columns of the terminal, 80 if unknown; at least 40."""
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def table(rows: Sequence[Sequence[str]], align: str = "", indent: str = "", shrink: int = -1) -> str:
    """Rows as lines, the first one a heading. `align`: < or > per column. Column `shrink` is shortened to
    fit."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    over = len(indent) + sum(widths) + len(GAP) * (len(widths) - 1) - width()
    if over > 0 and sys.stdout.isatty():
        widths[shrink] = max(8, widths[shrink] - over)
    align = align or "<" * len(widths)
    lines = (
        GAP.join(f"{cut(cell, w):{a}{w}}" for cell, a, w in zip(row, align, widths, strict=True))
        for row in rows
    )
    return "\n".join(f"{indent}{line}".rstrip() for line in lines)


def cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def described(rows: Sequence[tuple[str, str]], indent: str = "") -> str:
    """Names with sentences beside them, which wrap."""
    left = max(len(name) for name, _ in rows) + len(GAP)
    lines: list[str] = []
    for name, text in rows:
        wrapped = textwrap.wrap(text, width() - len(indent) - left) or [""]
        lines += [f"{indent}{first:{left}}{line}" for first, line in zip([name], wrapped, strict=False)]
        lines += [f"{indent}{'':{left}}{line}" for line in wrapped[1:]]
    return "\n".join(line.rstrip() for line in lines)
