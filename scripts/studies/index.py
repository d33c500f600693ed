"""Lists the pages of docs/results/ in docs/results/index.md: title and first sentence of each.

python scripts/studies/index.py [--check]
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def describe(page: Path) -> tuple[str, str]:
    """The page's title and the first sentence under it that is not about how it was made."""
    lines = page.read_text().splitlines()
    title = next((line.removeprefix("# ").strip() for line in lines if line.startswith("# ")), page.stem)
    text = "\n".join("" if line.startswith("#") else line for line in lines)
    paragraphs = [" ".join(p.split()) for p in text.split("\n\n")]
    paragraphs = [re.sub(r"^Made by `[^`]*`\. ", "", p) for p in paragraphs]
    aside = ("Made by", "Written by", "See ")
    plain = [p for p in paragraphs if p and p[0] not in "#|!<-`" and not p.startswith(aside)]
    sentence = re.split(r"(?<=[.:])\s", plain[0])[0].rstrip(":.") if plain else ""
    sentence = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", sentence)  # links of the page do not work from here
    return title, sentence


def index(folder: Path) -> str:
    pages = sorted(path for path in folder.glob("*.md") if path.name != "index.md")
    rows = []
    for page in pages:
        title, sentence = describe(page)
        rows.append(f"| [{title}]({page.name}) | {sentence.replace('|', '∣')} |")
    head = "# Results\n\nOne page per study, each written by a script in `scripts/studies/`; this list by\n"
    head += "`python scripts/studies/index.py`.\n\n| study | what it is about |\n|---|---|\n"
    return head + "\n".join(rows) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only say whether the list is up to date")
    args = parser.parse_args()
    target, text = RESULTS / "index.md", index(RESULTS)
    if args.check:
        current = target.read_text() if target.exists() else ""
        if current != text:
            print("docs/results/index.md is out of date: python scripts/studies/index.py")
        return int(current != text)
    target.write_text(text)
    print(f"written to {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
