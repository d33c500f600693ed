"""Results, plots and the report page; the page also in a real browser."""

from __future__ import annotations

import base64
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.metrics.parquet import MetricsWriter
from jaxrl_hpc.report.data import load_run, load_runs
from jaxrl_hpc.report.page import write_report
from jaxrl_hpc.report.plots import main_metric, write_plots
from jaxrl_hpc.runs.directory import RunDirectory
from tests.report.browser import PROGRAM, Browser
from tests.report.made_runs import make_run

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    return [
        make_run(root / "slow"),
        make_run(root / "fast <b>&", seeds=4, speed=1.4),
        make_run(root / "acrobot", env="Acrobot-v1", seeds=1, finished=False),
    ]


def test_curve_is_the_trimmed_mean_over_seeds_at_the_logged_steps(runs: list[Path]) -> None:
    run = load_run(runs[0])
    curve = run.curve("eval", "eval_return")
    assert curve is not None
    np.testing.assert_array_equal(curve.x, np.arange(10_000, 100_001, 10_000))
    frame = run.table.to_pandas()
    frame = frame[frame.kind == "eval"].pivot(index="env_steps", columns="seed", values="eval_return")
    np.testing.assert_allclose(curve.value, stats.trim_mean(frame.to_numpy(), 0.25, axis=1))
    assert np.all((curve.low <= curve.value) & (curve.value <= curve.high))
    train = run.curve("train", "episode_return")
    assert train is not None and train.x[0] == 4000  # no episode had ended at the first log point
    assert run.curve("eval", "nothing") is None
    assert "loss" in run.columns("train") and "loss" not in run.columns("eval")


def test_what_is_not_a_run_is_named(runs: list[Path], tmp_path: Path) -> None:
    empty = RunDirectory.open(tmp_path / "empty", resume=False)
    empty.write_config({"agent": {"name": "dqn"}})
    MetricsWriter(empty.path)
    broken = tmp_path / "broken"
    shutil.copytree(runs[0], broken)
    part = next((broken / "metrics").iterdir())
    part.write_bytes(part.read_bytes()[:100])
    for path, message in [
        (tmp_path / "nowhere", "there is no run directory"),
        (tmp_path, r"no config\.yaml"),
        (empty.path, "no metrics yet"),
        (broken, part.name),
    ]:
        with pytest.raises(UserError, match=message):
            write_report([runs[0], path], tmp_path / "page.html")
    with pytest.raises(UserError, match="at least one"):
        write_report([], tmp_path / "page.html")
    with pytest.raises(UserError, match="twice"):
        write_report([runs[0], runs[0]], tmp_path / "page.html")
    with pytest.raises(UserError, match="cannot write"):
        write_report([runs[0]], "/proc/page.html")
    assert not (tmp_path / "page.html").exists()


def test_runs_of_the_same_name_are_told_apart(runs: list[Path], tmp_path: Path) -> None:
    for parent in ("monday", "tuesday"):
        shutil.copytree(runs[0], tmp_path / parent / "slow")
    names = [run.name for run in load_runs([tmp_path / "monday/slow", tmp_path / "tuesday/slow"])]
    assert names == ["monday/slow", "tuesday/slow"]


def test_png_of_a_run(runs: list[Path]) -> None:
    (path,) = write_plots(runs[0])
    assert path == runs[0] / "plots" / "learning_curve.png"
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 20_000
    assert main_metric(load_runs(runs)) == ("eval", "eval_return")


def test_page_is_complete_and_escapes_names(runs: list[Path], tmp_path: Path) -> None:
    page = write_report(runs, tmp_path / "new" / "page.html").read_text()
    assert page.count("plotly.js v") == 1  # the library once
    body = page[page.index("<body>") : page.index("plotly.js v")]
    assert "fast &lt;b&gt;&amp;" in body and "<b>&" not in body and "fast <b>" not in body
    summary = load_run(runs[0]).summary
    assert f"{summary['eval_return_score']:.1f}" in body and "not finished" in body
    marked = re.findall(r'<tr class="differs"><th>(.*?)</th>', body)
    assert marked == ["agent.learning_rate", "env.name", "run.name", "run.seeds"]
    assert not re.search(r"(src|href)=.?(https?:)?//", body)


VISIBLE = """[...document.querySelectorAll('.plot')].map(plot => ({
    id: plot.id, width: plot.clientWidth, type: plot.layout.xaxis.type,
    points: plot.data.filter(t => t.visible).reduce((n, t) => n + t.x.length, 0),
    lines: plot.querySelectorAll('.scatterlayer .trace, .barlayer .trace').length,
    runs: [...new Set(plot.data.filter(t => t.visible && t.meta).map(t => t.meta.run))],
    axes: [...new Set(plot.data.filter(t => t.visible && t.meta).map(t => t.meta.axis))]}))"""


@pytest.mark.skipif(PROGRAM is None, reason="no Chromium on the PATH: apt-get install chromium")
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_page_in_a_browser(runs: list[Path], tmp_path: Path, width: int, dark: bool) -> None:
    """No error, no request, every chart has data, every control works, nothing is wider than a phone."""
    local = [tmp_path / path.name for path in runs]
    for source, target in zip(runs, local, strict=True):
        shutil.copytree(source, target)
    (local[0] / "plots").mkdir(exist_ok=True)
    (local[0] / "plots" / "episode.png").write_bytes(PIXEL)
    path = write_report(local, tmp_path / "page.html")
    with Browser() as page:
        page.resize(width, 900, dark)
        page.open(path)
        charts = page.evaluate(VISIBLE)
        assert len(charts) >= 10
        for chart in charts:
            assert chart["points"] > 0 and chart["lines"] > 0 and 0 < chart["width"] <= width, chart
        curves = [chart for chart in charts if chart["axes"] == ["env_steps"]]
        assert len(curves) >= 8
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", background)[:3])) < 200) == dark
        assert page.evaluate("document.querySelector('.picture img').naturalWidth") == 1
        page.evaluate("document.querySelector('[data-axis=wall_seconds]').click()")
        page.evaluate("document.querySelector('[data-log=x]').click()")
        page.evaluate("document.querySelector('[data-run=slow]').click()")
        changed = {chart["id"]: chart for chart in page.evaluate(VISIBLE)}
        for chart in curves:
            now = changed[chart["id"]]
            assert now["axes"] == ["wall_seconds"] and now["type"] == "log" and now["lines"] > 0
            assert now["runs"] == [name for name in chart["runs"] if name != "slow"]
        assert page.problems == []
        assert page.requests == [path.resolve().as_uri()]
