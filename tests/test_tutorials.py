"""Every command of the tutorials is run, in order, in an empty folder; files are those that the pages show.

Blocks marked `sh` and `python` run; blocks without a mark (Slurm) are only shown. A block after a line that
names a file is that file.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(
    r"(?:^`(?P<file>[\w./]+)`:\n\n)?^```(?P<kind>sh|python|yaml)\n(?P<text>.*?)^```", re.M | re.S
)


def blocks(page: Path) -> list[tuple[str | None, str, str]]:
    return [(m["file"], m["kind"], m["text"]) for m in BLOCK.finditer(page.read_text())]


CASES = [
    pytest.param(page, id=page.stem, marks=pytest.mark.full if page.stem == "first_run" else pytest.mark.slow)
    for page in TUTORIALS
]


@pytest.mark.parametrize("page", CASES)
def test_tutorial(page: Path, tmp_path: Path) -> None:
    programs = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "REPO": str(ROOT)}
    for file, kind, text in blocks(page):
        if file is not None:
            (tmp_path / file).write_text(text)
            continue
        assert kind in ("sh", "python"), f"a {kind} block without a file's name: {text}"
        command = ["bash", "-ec", text] if kind == "sh" else [sys.executable, "-c", text]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"


def test_tutorials_have_commands() -> None:
    assert len(TUTORIALS) == 5
    for page in TUTORIALS:
        assert any(kind == "sh" for _, kind, _ in blocks(page)), page
