"""The site builds without a warning and asks no host for anything; what is generated is up to date."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import jaxrl_hpc as rl
from jaxrl_hpc.config.files import json_schema
from tests.report.browser import PROGRAM, Browser

DOCS = Path(__file__).resolve().parents[1] / "docs"
FETCHED = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=\"(?:https?:)?//[^\"]*\"[^>]*>")


def part(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reference_has_every_field() -> None:
    module = part("config_reference")
    text, seen = module.reference(), set()
    for title, definition in json_schema()["$defs"].items():
        heading = "## run" if title == "RunConfig" else f"### {module.heading(title, definition)}"
        for name in definition.get("properties", {}):
            section = text.partition(f"{heading}\n")[2].partition("\n##")[0]
            assert f"| `{name}` |" in section, f"{title}.{name}"
        assert heading not in seen
        seen.add(heading)
    assert "number, > 0" in text and "integer, ≥ 1, ≤ 2³¹ − 1" in text and "`False`" not in text


def test_reference_has_every_name_of_the_api() -> None:
    module = part("api_reference")
    text = module.reference()
    for name in (*module.ENTRY, *module.CLASSES, *module.CONTRACTS):
        assert f"### `rl.{name}`" in text
    for space in (rl.agents, rl.replay, rl.envs, rl.workflows):
        for name in space.__all__:
            assert f"`rl.{space.__name__.rpartition('.')[2]}.{name}`" in text
    assert module.prose("One.\n\nArgs:\n  x: a number,\n    or two.\n\nReturns:\n  it.") == [
        "One.", "", "", "**Args**", "", "- `x`: a number,", "  or two.", "", "", "**Returns**", "", "  it.",
    ]  # fmt: skip


def test_diagrams_are_drawn_by_their_script() -> None:
    for name, svg in part("diagrams").draw().items():
        assert (DOCS / "images" / name).read_text() == svg, "run python docs/diagrams.py"
    assert not [page for page in DOCS.rglob("*.md") if "```mermaid" in page.read_text()]


def test_gallery_has_every_figure_of_the_results() -> None:
    text = part("gallery_page").gallery()
    pictures = {p.name for p in (DOCS / "results").glob("*.png")}
    missing = {name for name in pictures if f"(results/{name})" not in text}
    assert not missing, "a figure that no result page shows"


def test_every_page_is_on_the_site() -> None:
    index = (DOCS / "index.md").read_text()
    pages = [p.relative_to(DOCS).with_suffix("").as_posix() for p in DOCS.rglob("*.md")]
    built = ("_build/", "results/", "examples/", "README", "index")
    missing = [page for page in pages if not page.startswith(built) and f"\n{page}\n" not in index]
    assert not missing


@pytest.mark.full
@pytest.mark.skipif(PROGRAM is None, reason="no Chromium on the PATH: apt-get install chromium")
def test_site_is_complete_without_a_network(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        str(DOCS),
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for page in tmp_path.rglob("*.html"):
        assert not FETCHED.findall(page.read_text()), page
    with Browser() as page:
        page.offline()
        for path in sorted(tmp_path.rglob("*.html")):
            if path.name in ("genindex.html", "search.html"):  # Sphinx's own
                continue
            page.open(path)
            assert page.evaluate("document.querySelector('h1').textContent.length") > 3
            broken = "[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
            assert page.evaluate(broken) == []
            assert page.accessibility() == [], path
        assert page.requests and all(url.startswith("file://") for url in page.requests), page.requests
        assert page.problems == []
