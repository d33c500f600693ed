"""Writes the gallery: every figure of the result pages, with the page that explains it."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)]+\.(?:png|svg))\)")


def figures() -> list[tuple[str, str, str]]:
    """(page, title, picture), by page."""
    found = []
    for page in sorted((HERE / "results").glob("*.md")):
        text = page.read_text()
        title = text.partition("\n")[0].removeprefix("# ")
        for _, target in PICTURE.findall(text):
            picture = (page.parent / target).resolve().relative_to(HERE)
            found.append((f"results/{page.name}", title, picture.as_posix()))
    return found


def gallery() -> str:
    lines = ["# Gallery", "", "Every figure of the results, with the page that says how it was made.", ""]
    for page, title, picture in figures():
        lines += [f"## {title}", "", f"[![{title}]({picture})]({page})", ""]
    return "\n".join(_merged(lines)) + "\n"


def _merged(lines: list[str]) -> list[str]:
    """Several figures of one page stand under one heading."""
    seen: set[str] = set()
    return [line for line in lines if not line.startswith("## ") or not (line in seen or seen.add(line))]


def write_gallery(path: Path) -> None:
    text = gallery()
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
