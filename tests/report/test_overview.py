"""The page over all runs of a folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from jaxrl_hpc.cli.main import main
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.report.overview import line_of, write_overview
from jaxrl_hpc.runs.listing import listing
from tests.report.browser import PROGRAM, Browser
from tests.report.made_runs import make_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_run(tmp_path / "runs" / "first", seeds=3)
    make_run(tmp_path / "runs" / "deeper" / "second", agent="ppo", speed=2.0)
    running = make_run(tmp_path / "runs" / "third", seeds=1, finished=False)
    (running / "ranks").mkdir()
    for rank, chunk in ((0, 7), (1, 5)):
        record = {"rank": rank, "host": "node1", "phase": "learning", "chunk": chunk}
        (running / "ranks" / f"{rank}.json").write_text(json.dumps(record))
    (tmp_path / "runs" / "sweeps" / "some" / "plans").mkdir(parents=True)
    return tmp_path / "runs"


def test_every_run_has_a_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder / "first")]) == 0
    assert main(["report", str(folder)]) == 0
    page = (folder / "index.html").read_text()
    assert str(folder / "index.html") in capsys.readouterr().out
    assert 'href="first/report.html"' in page and "deeper/second" in page and "sweeps/some" in page
    assert page.count("<polyline") == 3 and "://" not in page.replace("http://www.w3.org", "")


def test_a_running_job_shows_its_ranks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxrl_hpc.runs.listing.holder_of", lambda path: "process 1 on node1")
    (entry,) = [entry for entry in listing(folder) if entry.path.endswith("third")]
    line = line_of(entry, folder)
    assert line.state == "training" and 0.9 < line.share <= 1
    assert "2 ranks, at most 2 chunks apart" in line.live


def test_folders_without_runs_and_damaged_ones(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="there are no runs"):
        write_overview(tmp_path / "empty")
    (folder / "first" / "config.yaml").write_text("[")
    page = write_overview(folder).read_text()
    assert "damaged" in page
    assert main(["report", str(folder), "--output", "x.html"]) == 2


def test_names_of_folders_cannot_change_the_page(folder: Path) -> None:
    """They become neither code nor other links."""
    for name in ("javascript:alert(1)", "<b>a#1?x", os.fsdecode(b"caf\xe9")):
        (make_run(folder / name) / "report.html").write_text("")
    page = write_overview(folder).read_text()
    assert 'href="javascript%3Aalert%281%29/report.html"' in page
    assert 'href="%3Cb%3Ea%231%3Fx/report.html"' in page and "<b>" not in page
    assert 'href="caf%E9/report.html"' in page


@pytest.mark.skipif(PROGRAM is None, reason="no Chromium on the PATH: apt-get install chromium")
@pytest.mark.parametrize("dark", [False, True])
def test_overview_in_a_browser(folder: Path, dark: bool) -> None:
    page = write_overview(folder)
    with Browser() as browser:
        browser.offline()
        browser.resize(800, 900, dark)
        browser.open(page)
        names = "[...document.querySelectorAll('tbody tr:not([hidden]) th')].map(n => n.textContent)"
        before = browser.evaluate(names)
        browser.evaluate("document.querySelector('thead button').click()")
        assert browser.evaluate(names) == sorted(before, reverse=True)
        browser.evaluate("document.querySelector('thead button').click()")
        assert browser.evaluate(names) == sorted(before)
        browser.evaluate(
            "{const f = document.getElementById('filter'); f.value = 'PPO'; "
            "f.dispatchEvent(new Event('input'))}"
        )
        assert browser.evaluate(names) == ["deeper/second"]
        assert browser.problems == []
        assert browser.accessibility() == []
