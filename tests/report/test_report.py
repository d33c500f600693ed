"""Results, plots and the report page; the page also in a real browser."""

from __future__ import annotations

import base64
import json
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from jaxrl_hpc.cli.main import main
from jaxrl_hpc.cli.report import shipped
from jaxrl_hpc.config import load
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.metrics.parquet import MetricsWriter
from jaxrl_hpc.report.charts import Chart
from jaxrl_hpc.report.comparison import comparison
from jaxrl_hpc.report.data import load_run, load_runs
from jaxrl_hpc.report.live import RankState, behind
from jaxrl_hpc.report.page import render_page, write_report
from jaxrl_hpc.report.plots import main_metric, write_plots
from jaxrl_hpc.report.sections import Section
from jaxrl_hpc.runs.directory import RunDirectory
from tests.report.browser import PROGRAM, Browser
from tests.report.made_runs import make_run
from tests.tiers import quick

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
    means = stats.trim_mean(frame.to_numpy(), 0.25, axis=1)
    np.testing.assert_allclose(curve.value[:-1], means[:-1])
    # headline and curve agree: the final evaluation takes the place of the one at the same step
    assert curve.value[-1] == pytest.approx(run.summary["eval_return_score"])
    assert curve.value[-1] == pytest.approx(means[-1] + 2)
    assert (curve.low[-1], curve.high[-1]) == pytest.approx(tuple(run.summary["eval_return_interval"]))
    (_, values), *_ = run.per_seed("eval", "eval_return", "env_steps")
    assert values[-1] == frame.to_numpy()[-1, 0]  # the logged ones stay as they are
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


def test_a_final_evaluation_after_the_last_logged_one_is_one_more_point(runs: list[Path]) -> None:
    run = load_run(runs[0])
    later = replace(run, summary=run.summary | {"env_steps": 120_000, "wall_seconds": 60.0})
    first = later.seed_curves("eval", "eval_return")[0]
    assert list(first.steps[-2:]) == [100_000, 120_000] and first.minutes[-1] == 1.0
    unfinished = replace(run, summary={})
    assert unfinished.seed_curves("eval", "eval_return")[0].steps[-1] == 100_000


def test_page_is_complete_and_escapes_names(runs: list[Path], tmp_path: Path) -> None:
    page = write_report(runs, tmp_path / "new" / "page.html").read_text()
    body = page[page.index("<body>") : page.index('id="charts"')]
    assert "fast &lt;b&gt;&amp;" in body and "<b>&" not in body and "fast <b>" not in body
    assert "fast <b>" not in page[page.index('id="charts"') :]  # nor can a name end the script
    summary = load_run(runs[0]).summary
    assert f"{summary['eval_return_score']:.1f}" in body and "not finished" in body
    config = body[body.index('id="config"') :]
    listed = re.findall(r'<th scope="row">(.*?)</th>', config)
    assert listed == ["agent.learning_rate", "env.name", "run.name", "run.seeds"]  # only what differs
    assert not re.search(r"(src|href)=.?(https?:)?//", page)
    order = re.findall(r'<section id="(\w+)">', body)
    assert order.index("learning") < order.index("metrics") < order.index("config") == len(order) - 1


def test_a_page_of_eight_seeds_and_two_hundred_points_is_small(tmp_path: Path) -> None:
    run = make_run(tmp_path / "long", seeds=8, points=200)
    assert len(load_run(run).seed_curves("eval", "eval_return")[0].steps) == 200
    assert write_report([run], tmp_path / "page.html").stat().st_size < 1_500_000


def test_few_seeds_are_called_so(tmp_path: Path) -> None:
    page = write_report([make_run(tmp_path / "few", seeds=3)], tmp_path / "page.html").read_text()
    body = page[page.index("<main>") : page.index("</main>")]
    assert "mean, range of 3 seeds" in body and "With fewer than 5 seeds the line is their mean" in body
    assert "interquartile" not in body
    charts = json.loads(re.search(r'id="charts">(.*?)</script>', page)[1])
    (row,) = next(chart for chart in charts if chart["kind"] == "strip")["rows"]
    assert row["few"] and [row["low"], row["high"]] == [min(row["values"]), max(row["values"])]


def test_configuration_marks_what_was_changed_and_gives_the_command(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    settings = load("cartpole_dqn", ["agent.learning_rate=5e-3", "run.seeds=8"]).to_dict()
    RunDirectory(run).write_config(settings)
    page = write_report([run], tmp_path / "page.html", base_of=shipped).read_text()
    assert "<code>jaxrl-hpc train cartpole_dqn agent.learning_rate=0.005 run.seeds=8</code>" in page
    assert re.findall(r'<tr class="changed"><th scope="row">(\w+)', page) == ["learning_rate", "seeds"]
    assert page.index("<details><summary>Show</summary>") > page.index('id="config"')  # folded
    RunDirectory(run).write_config(settings | {"run": settings["run"] | {"name": "mine"}})
    page = write_report([run], tmp_path / "page.html", base_of=shipped).read_text()
    assert "The command" not in page and f"jaxrl-hpc train {run}/config.yaml" in page


def test_profiles_pairs_and_pooled_environments(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / f"{agent}_{env}", seeds=5, agent=agent, env=env, speed=speed)
        for env in ("CartPole-v1", "Acrobot-v1")
        for agent, speed in (("dqn", 0.5), ("ppo", 1.4))
    ]
    loaded = load_runs(runs)
    section = comparison(loaded, {run.name: index for index, run in enumerate(loaded)})
    assert section is not None
    assert [chart.id for chart in section.charts] == ["profile-0", "profile-1", "profile-pooled", "pooled"]
    text = re.sub(r"<[^>]+>", " ", section.html)
    assert re.search(r"ppo_CartPole-v1\s+dqn_CartPole-v1\s+CartPole-v1\s+100 %\s+100 to 100 %", text)
    assert re.search(r"PPO\s+DQN\s+2 environments\s+100 %", text)
    pooled = section.charts[-1].data["rows"]
    assert min(pooled[0]["values"]) == 0.0 and max(pooled[1]["values"]) == 1.0
    assert comparison(loaded[:1], {loaded[0].name: 0}) is None


def test_an_unfinished_run_shows_its_ranks(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", finished=False)
    (run / "ranks").mkdir()
    for rank, chunk in ((0, 7), (1, 5)):
        record = {"rank": rank, "host": "node3", "pid": 1, "phase": "learning", "chunk": chunk, "count": 2}
        (run / "ranks" / f"{rank}.json").write_text(json.dumps(record))
    (run / "ranks" / "2.json").write_text("{")  # being replaced just now
    page = write_report([run], tmp_path / "page.html", reload_seconds=5).read_text()
    text = " ".join(re.sub(r"<[^>]+>", " ", page[page.index('id="live"') :]).split())
    assert "stopped; continue it with --resume" in text and "100k of 100k steps" in text
    assert "2 ranks" in text and re.search(r"1 node3 learning 5 2 ", text)
    assert "reloads every 5 s" in page


def test_actors_are_not_compared_with_learners() -> None:
    """A learner counts chunks, an actor unrolls."""
    states = [RankState(rank, "node", "", chunk, 0.0) for rank, chunk in enumerate((48, 331, 332))]
    assert behind(states, learners=1) == [0, 1, 0]
    assert behind(states, learners=0) == [284, 1, 0]


def test_watch_makes_the_page_until_the_run_has_finished(tmp_path: Path, monkeypatch, capsys) -> None:
    run, done = make_run(tmp_path / "run", finished=False), make_run(tmp_path / "done")
    seen = []

    def sleep(seconds: float) -> None:
        seen.append((seconds, "reloads every 7 s" in (run / "report.html").read_text()))
        if len(seen) == 2:
            shutil.copy(done / "summary.json", run)

    monkeypatch.setattr("time.sleep", sleep)
    assert main(["report", str(run), "--watch", "7"]) == 0
    assert seen == [(7, True), (7, True)]
    assert "reloads every" not in (run / "report.html").read_text()
    assert main(["report", str(run), "--watch", "0"]) == 2
    assert "--watch: should be from 1 to 3600" in capsys.readouterr().err


def test_watch_waits_for_the_first_metrics(tmp_path: Path, monkeypatch, capsys) -> None:
    run, done = tmp_path / "run", make_run(tmp_path / "done")
    new = RunDirectory.open(run, resume=False)
    new.write_config(RunDirectory(done).read_config())
    MetricsWriter(run)
    monkeypatch.setattr("time.sleep", lambda _: shutil.copytree(done, run, dirs_exist_ok=True))
    assert main(["report", str(run), "--watch"]) == 0
    assert f"{run} has no metrics yet; again in 10 s" in capsys.readouterr().out
    assert (run / "report.html").is_file()


DRAWN = """[...document.querySelectorAll('.plot')].map(plot => ({
    id: plot.id, kind: plot.className, width: plot.clientWidth,
    shapes: plot.querySelectorAll('.curve, rect, circle').length,
    colors: [...new Set([...plot.querySelectorAll('.curve')].map(line => line.getAttribute('stroke')))],
    title: (plot.querySelector('.label') || {}).textContent,
    ticks: [...plot.querySelectorAll('.tick')].map(tick => tick.textContent).join(' '),
    text: [...plot.querySelectorAll('text')].map(text => { const b = text.getBoundingClientRect();
        return [b.left, b.top, b.right, b.bottom, text.textContent]; })}))"""


def overlapping(boxes: list[list[float]]) -> list[str]:
    """Texts that lie on each other."""
    return [
        f"{a[4]!r} on {b[4]!r}"
        for index, a in enumerate(boxes)
        for b in boxes[index + 1 :]
        if min(a[2], b[2]) - max(a[0], b[0]) > 1 and min(a[3], b[3]) - max(a[1], b[1]) > 3
    ]


@pytest.mark.skipif(PROGRAM is None, reason="no Chromium on the PATH: apt-get install chromium")
@pytest.mark.parametrize(
    ("width", "dark"),
    quick([(w, d) for w in (1280, 768, 390) for d in (False, True)], [(1280, False), (390, True)]),
)
def test_page_in_a_browser(runs: list[Path], tmp_path: Path, width: int, dark: bool) -> None:
    """No error, no request, every chart has data, every control works, nothing is wider than a phone."""
    local = [tmp_path / path.name for path in runs]
    for source, target in zip(runs, local, strict=True):
        shutil.copytree(source, target)
    (local[0] / "plots").mkdir(exist_ok=True)
    (local[0] / "plots" / "policy.png").write_bytes(PIXEL)
    frames = [Image.new("RGB", (8, 6), (40 * i, 0, 0)) for i in range(4)]
    frames[0].save(local[0] / "plots" / "episode.gif", save_all=True, append_images=frames[1:])
    path = write_report(local, tmp_path / "page.html")
    with Browser() as page:
        page.resize(width, 900, dark)
        page.open(path)
        charts = page.evaluate(DRAWN)
        assert len(charts) >= 10
        for chart in charts:
            assert chart["shapes"] > 0 and 0 < chart["width"] <= width, chart
            assert overlapping(chart["text"]) == [], chart["id"]
        curves = {chart["id"]: chart for chart in charts if chart["title"] == "Environment steps"}
        assert len(curves) >= 8
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", background)[:3])) < 200) == dark
        assert page.evaluate("document.querySelector('.picture:not(.episode) img').naturalWidth") == 1
        assert page.evaluate("document.querySelector('.film img').naturalHeight") == 24  # four frames
        assert page.accessibility() == []
        slider = "document.querySelector('.player input')"
        page.evaluate(f"{slider}.value = 2; {slider}.dispatchEvent(new Event('input'))")
        assert "-50%" in page.evaluate("document.querySelector('.film img').style.transform")
        hover = "new PointerEvent('pointermove', {clientX: b.left + b.width / 2, clientY: b.top + 40})"
        page.evaluate(
            "(() => { const p = document.querySelector('.plot.lines'), b = p.getBoundingClientRect(); "
            f"p.dispatchEvent({hover}); }})()"
        )
        assert "slow: " in page.evaluate("document.querySelector('.tip').textContent")
        page.evaluate("document.querySelector('[data-axis=t]').click()")
        page.evaluate("document.querySelector('[data-log=x]').click()")
        page.evaluate("document.querySelector('[data-run=slow]').click()")
        for chart in page.evaluate(DRAWN):
            if chart["id"] in curves:
                before = curves[chart["id"]]
                assert chart["title"] == "Wall time (min)" and chart["ticks"] != before["ticks"]
                assert chart["colors"] == [c for c in before["colors"] if c != "var(--c0)"]
                assert overlapping(chart["text"]) == [], chart["id"]
        assert page.problems == []
        assert page.requests == [path.resolve().as_uri()]


@pytest.mark.skipif(PROGRAM is None, reason="no Chromium on the PATH: apt-get install chromium")
def test_a_live_page_reloads_itself_until_it_is_paused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", finished=False)
    path = write_report([run], tmp_path / "page.html", reload_seconds=1)
    click = "document.getElementById('reload').click()"
    with Browser() as page:
        page.open(path)
        deadline = time.monotonic() + 600
        while page.requests.count(path.resolve().as_uri()) < 2 and time.monotonic() < deadline:
            page.call("Target.getTargets")  # collects events
            time.sleep(0.05)
        assert page.requests.count(path.resolve().as_uri()) >= 2
    with Browser() as page:
        page.open(write_report([run], path, reload_seconds=3600))
        assert page.accessibility() == []
        page.evaluate(
            "window.calls = []; clearTimeout = () => calls.push('clear'); "
            "setTimeout = (f, t) => calls.push(t)"
        )
        page.evaluate(f"{click}; {click}")
        assert page.evaluate("calls") == ["clear", 3_600_000] and page.problems == []


@pytest.mark.skipif(PROGRAM is None, reason="no Chromium on the PATH: apt-get install chromium")
def test_numbers_on_coloured_cells_can_be_read(tmp_path: Path) -> None:
    """White on dark cells, dark on bright ones; ticks of a narrow range are told apart."""
    field = {"x": "rate", "y": "width", "columns": ["1", "2"], "lines": ["64"], "z": [[0.0, 1.0]]}
    curve = {
        "x": "Steps",
        "y": "Ratio",
        "series": [{"run": "a", "color": 0, "x": [10, 20], "y": [1, 1.0006]}],
    }
    charts = [Chart("cells", "Cells", "field", field), Chart("narrow", "Narrow", "lines", curve)]
    path = tmp_path / "page.html"
    path.write_text(render_page("Some", "page", {}, [Section("one", "One", charts=charts)]))
    with Browser() as page:
        page.resize(1280, 900)
        page.open(path)
        fills = "[...document.querySelectorAll('text.cell')].map(t => getComputedStyle(t).fill)"
        assert page.evaluate(fills) == ["rgb(255, 255, 255)", "rgb(17, 17, 17)"]
        (ticks,) = [chart["ticks"].split() for chart in page.evaluate(DRAWN) if chart["id"] == "narrow"]
        assert len(ticks) == len(set(ticks)), ticks
