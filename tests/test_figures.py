"""Every kind of figure from stored data: no text lies on another, none leaves the picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from jaxrl_hpc.bench import replay, train_tables
from jaxrl_hpc.report.data import load_runs
from jaxrl_hpc.report.plots import learning_curves
from jaxrl_hpc.scaling import figure as scaling_figure
from tests.report.made_runs import make_run
from tests.test_docs import DOCS, study

DATA, RESULTS = DOCS / "data", DOCS / "results"


def flaws(figure: Figure) -> list[str]:
    """Texts that collide or are cut off."""
    FigureCanvasAgg(figure).draw()
    renderer = figure.canvas.get_renderer()
    hidden = {text for axes in figure.axes if not axes.get_visible() for text in axes.findobj(Text)}
    texts = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip() and t not in hidden]
    boxes = []
    for text in texts:
        box = text.get_window_extent(renderer)
        axis = next((a for p in figure.axes for a in (p.xaxis, p.yaxis) if _labels(a, text)), None)
        if axis is None or _within(axis, text):
            boxes.append((text.get_text(), box))
    width, height = figure.bbox.size
    found = [
        f"{name!r} is cut off"
        for name, b in boxes
        if b.x0 < -1 or b.y0 < -1 or b.x1 > width + 1 or b.y1 > height + 1
    ]
    for index, (name, a) in enumerate(boxes):
        for other, b in boxes[index + 1 :]:
            if min(a.x1, b.x1) - max(a.x0, b.x0) > 2 and min(a.y1, b.y1) - max(a.y0, b.y0) > 2:
                found.append(f"{name!r} lies on {other!r}")
    return found


def _labels(axis, text: Text) -> bool:
    return any(text in (tick.label1, tick.label2) for tick in (*axis.majorTicks, *axis.minorTicks))


def _within(axis, text: Text) -> bool:
    """Ticks outside of the limits exist, but are not drawn."""
    low, high = sorted(axis.get_view_interval())
    place = text.get_position()[0 if axis.axis_name == "x" else 1]
    return low - 1e-9 * abs(low) <= place <= high + 1e-9 * abs(high)


@pytest.fixture
def drawn(monkeypatch) -> list[Figure]:
    """Figures that scripts save, instead of files."""
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: figures.append(self))
    return figures


@pytest.mark.parametrize("engine", [{}, {"engine": "mpi"}])
@pytest.mark.parametrize("case", ["dqn_weak", "ppo_strong", "ppo_weak"])
def test_scaling(case: str, engine: dict[str, str], drawn: list[Figure], tmp_path: Path) -> None:
    report = json.loads((DATA / f"scaling_{case}.json").read_text())
    report["rows"] = [row | engine for row in report["rows"]]
    scaling_figure.draw(report, tmp_path / "x.png")
    assert flaws(drawn[0]) == []


def test_packing(drawn: list[Figure], tmp_path: Path) -> None:
    study("packing").draw(json.loads((RESULTS / "packing.json").read_text()), tmp_path / "x.png")
    assert flaws(drawn[0]) == []


def test_speed_beside_other_libraries(drawn: list[Figure], tmp_path: Path) -> None:
    train_tables.draw(json.loads((DATA / "bench_train.json").read_text()), tmp_path / "x.svg")
    assert flaws(drawn[0]) == []


def test_replay(drawn: list[Figure], tmp_path: Path) -> None:
    replay.plot(json.loads((RESULTS / "replay.json").read_text()), tmp_path / "x.svg")
    study("replay_bench").layout_picture(tmp_path / "y.svg")
    assert [flaws(figure) for figure in drawn] == [[], []]


def test_time_to_solve(drawn: list[Figure]) -> None:
    runs = json.loads((DATA / "workflows.json").read_text())["runs"].values()
    study("workflows_page").draw_solve([run for run in runs if run["group"] == "solve"])
    assert flaws(drawn[0]) == []


@pytest.mark.parametrize("name", ["window_collisions", "intervals"])
def test_figures_of_stored_studies(name: str) -> None:
    assert flaws(study(name).figure_of(json.loads((RESULTS / f"{name}.json").read_text()))) == []


@pytest.mark.parametrize(
    "agents", [["dqn"], ["dqn", "ppo"], ["dqn", "ppo", "a2c_vtrace", "recurrent_dqn", "dyna_q"]]
)
def test_learning_curves(agents: list[str], tmp_path: Path) -> None:
    runs = [make_run(tmp_path / agent, agent=agent, seeds=3 + i) for i, agent in enumerate(agents)]
    assert flaws(learning_curves(load_runs(runs), "eval", "eval_return")) == []


@pytest.mark.parametrize("path", sorted((DATA / "curves").glob("*.json")), ids=lambda path: path.stem)
def test_stored_curves(path: Path, monkeypatch) -> None:
    script = study(json.loads(path.read_text())["script"])
    if path.stem == "exabooster":
        monkeypatch.setattr(script, "reference", lambda rule, limited: {"with_phase": 1.8}.get(rule, 1.2))
    assert flaws(script.figure_of(path.stem)) == []


def test_curves_are_stored_as_they_are(tmp_path: Path, monkeypatch) -> None:
    script = study("curves")
    monkeypatch.setattr(script, "CURVES", tmp_path / "curves")
    runs = load_runs([make_run(tmp_path / name, seeds=seeds) for name, seeds in (("a", 3), ("b", 6))])
    script.store("some", "learning", runs)
    stored, metric = script.load("some")
    assert metric == "eval_return" and [run.name for run in stored] == ["a", "b"]
    for run, again in zip(runs, stored, strict=True):
        first, second = run.curve("eval", metric), again.curve("eval", metric)
        for one, other in zip(first, second, strict=True):
            assert one == pytest.approx(other, rel=1e-4)


def test_a_study_stores_the_curves_of_its_figure(tmp_path: Path, monkeypatch) -> None:
    script = study("learning")
    entries = tuple(script.Entry(name, "cartpole_dqn", 3) for name in ("a", "b"))
    monkeypatch.setattr(script, "STUDIES", {"some": script.Study("Some", "Text.", entries)})
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    monkeypatch.setattr(script.curves, "CURVES", tmp_path / "curves")
    monkeypatch.setattr(script.readme, "write", lambda: None)
    for entry in entries:
        make_run(tmp_path / "runs" / "studies" / "some" / entry.name, seeds=entry.seeds)
    script.write_page("some")
    assert "The figure is of the runs before" not in (tmp_path / "some.md").read_text()
    assert (tmp_path / "some.png").exists() and script.curves.stored_names("some") == {"a", "b"}


def test_seeds_of_different_speed_give_one_curve_against_time(tmp_path: Path) -> None:
    """Processes of their own may not overlap in time at all."""
    script = study("curves")
    steps = [100, 200, 300]
    seeds = [
        {"seed": i, "steps": steps, "minutes": [10**i * k for k in (1, 2, 3)], "values": [0, i, 5]}
        for i in range(3)
    ]
    run = script._run({"name": "x", "env": "E", "agent": "ppo", "seeds": seeds}, "eval_return")
    panel = learning_curves([run], "eval", "eval_return").axes[1]
    drawn = next(line for line in panel.get_lines() if line.get_label() == "x")
    assert drawn.get_xdata() == pytest.approx([37, 74, 111])


def test_budgets_that_differ_are_on_a_logarithmic_axis() -> None:
    script = study("curves")
    both = []
    for name, steps in (("dqn", [1000, 10_000]), ("ppo", [5000, 60_000])):
        seeds = [{"seed": 0, "steps": steps, "minutes": [0.1, 2], "values": [0, 1]}]
        both.append(script._run({"name": name, "env": "E", "agent": name, "seeds": seeds}, "eval_return"))
    figure = learning_curves(both, "eval", "eval_return")
    assert [panel.get_xscale() for panel in figure.axes] == ["log", "linear"]  # equal times stay linear
    assert flaws(figure) == []
    labels = [tick.get_text() for tick in figure.axes[0].get_xticklabels()]
    assert labels == ["1k", "2k", "5k", "10k", "20k", "50k"]


def test_many_runs_and_environments_get_panels_of_their_own(tmp_path: Path) -> None:
    games = ["Breakout-MinAtar", "SpaceInvaders-MinAtar", "Asterix-MinAtar", "Freeway-MinAtar"]
    runs = [make_run(tmp_path / game, agent="a2c", env=game, seeds=3) for game in games]
    figure = learning_curves(load_runs(runs), "eval", "eval_return")
    assert flaws(figure) == [] and len(figure.axes) == 4


def test_a_collision_is_found() -> None:
    figure = Figure()
    figure.text(0.5, 0.5, "one text")
    figure.text(0.5, 0.51, "another")
    figure.text(0.99, 0.1, "a text that is cut off")
    assert len(flaws(figure)) == 2
