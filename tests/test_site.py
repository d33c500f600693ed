"""The site builds without a warning and asks no host for anything; the reference has every config field."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from jaxrl_hpc.config.files import json_schema
from tests.report.browser import PROGRAM, Browser

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_reference_has_every_field() -> None:
    spec = importlib.util.spec_from_file_location("config_reference", DOCS / "config_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.reference()
    for title, definition in json_schema()["$defs"].items():
        for name in definition.get("properties", {}):
            part = text.partition(f"## `{title}`\n")[2].partition("\n## ")[0]
            assert f"| `{name}` |" in part, f"{title}.{name}"
    assert "number, > 0" in text or "number, ≥ 0" in text


@pytest.mark.full
@pytest.mark.skipif(PROGRAM is None, reason="no Chromium on the PATH: apt-get install chromium")
def test_site_is_complete_without_a_network(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="the extra docs is not installed: make docs installs it")
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
    with Browser() as page:
        page.offline()
        for name in ("index.html", "reference/config.html", "results/intervals.html"):
            page.open(tmp_path / name)
            assert page.evaluate("document.querySelector('h1').textContent.length") > 3
        assert page.requests and all(url.startswith("file://") for url in page.requests), page.requests
        assert page.problems == []
