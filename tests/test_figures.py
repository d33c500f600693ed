"""Every kind of figure, from stored data where there is some: no text collides or is cut off."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from jaxrl_hpc.api.sweep import Sweep
from jaxrl_hpc.bench import growth, replay, train_tables
from jaxrl_hpc.envs import render
from jaxrl_hpc.envs.cahn_hilliard.figures import episode_figure as film_figure
from jaxrl_hpc.envs.cahn_hilliard.policies import AnnealingEpisode
from jaxrl_hpc.envs.exabooster import figures as exabooster_figures
from jaxrl_hpc.envs.exabooster.episodes import BoosterEpisode
from jaxrl_hpc.report.data import load_runs
from jaxrl_hpc.report.plots import learning_curves
from jaxrl_hpc.runtime.play import PlayedEpisode, moment_figure
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
@pytest.mark.parametrize("case", ["dqn_ahead", "dqn_weak", "ppo_strong", "ppo_weak"])
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


def test_atari(drawn: list[Figure]) -> None:
    script = study("atari")
    figure = script.figure_of(script.read_record())
    shown = [panel for panel in figure.axes if panel.get_visible()]
    assert flaws(figure) == [] and all(panel.get_lines() for panel in shown)
    assert "one seed" in {text.get_text() for text in figure.texts}


def test_a_run_that_changes_its_size() -> None:
    """As in the Cray paper's figure."""
    script = study("cray")
    qbert = study("atari").read_record()["runs"]["qbert_ppo"]
    assert flaws(script.resize_figure(script.read()["resize"], qbert)) == []


def test_transfer_between_plant_fits() -> None:
    script = study("exabooster_fits")
    assert flaws(script.figure_of(json.loads(script.DATA.read_text())["played"])) == []


def test_speed_of_workflows(drawn: list[Figure]) -> None:
    """With a model of any costs: fitting it takes long, and is not what is drawn."""
    script = study("workflows_page")
    known = json.loads((DATA / "workflows.json").read_text())
    runs = [run for run in known["runs"].values() if run["group"] == "speed"]
    model = SimpleNamespace(steps_per_second=3e4)
    curves = {run["variant"]: dict.fromkeys((1, 10, 100, 10_000), model) for run in runs}
    script.draw(runs, {script.key(run): model for run in runs}, curves)
    assert flaws(drawn[0]) == []


def test_growth_with_size(drawn: list[Figure], tmp_path: Path) -> None:
    lines = [{"size": n, "cpu_microseconds": 3e4 / n, "peak_bytes": 2e5 * n} for n in (8, 64, 512, 8192)]
    axes = [{"name": a.name, "title": a.title, "unit": a.unit, "lines": lines} for a in growth.AXES]
    growth.draw({"axes": axes}, tmp_path / "x.png")
    assert flaws(drawn[0]) == []


def asynchronous_runs(folder: Path, names: list[str], script) -> dict[str, list]:
    """Runs of 3 seeds, one process each, with lags."""
    found: dict[str, list] = {}
    for name in names:
        runs = []
        for seed in range(3):
            run = load_runs([make_run(folder / name.replace(" ", "_") / str(seed), seeds=1)])[0]
            table = run.table.drop_columns("seed").append_column("seed", pa.array([seed] * len(run.table)))
            for column in (*script.NAMES, "rho_clipped"):
                table = table.append_column(column, pa.array([1 / len(script.NAMES)] * len(table)))
            runs.append(replace(run, table=table))
        found[name] = runs
    return found


def test_asynchronous_agents(tmp_path: Path) -> None:
    script = study("asynchronous")
    assert flaws(script.curves(asynchronous_runs(tmp_path, [e.name for e in script.agents()], script))) == []
    runs = asynchronous_runs(tmp_path, [entry.name for entry in script.VTRACE], script)
    assert flaws(script.vtrace_figure(runs)) == []


def test_lag_by_construction(tmp_path: Path) -> None:
    script = study("vtrace_lag")
    run = load_runs([make_run(tmp_path / "run")])[0]
    cases = [(vtrace, lag) for vtrace in script.WAYS for lag in script.LAGS]
    assert flaws(script.figure_of({case: {"shipped": run, "tuned": run} for case in cases})) == []


def test_episodes_and_statistics_of_exabooster() -> None:
    noise = np.random.default_rng(0).normal(0, 0.2, (4, 102))
    for scale in (0.5, 2.0):  # better and worse than the regulator have different titles
        episode = BoosterEpisode(np.arange(102) / 15, scale * noise[0], 103 + noise[1], noise[2], noise[3])
        assert flaws(exabooster_figures.episode_figure(episode, "Minimum variance")) == []
    rows = np.random.default_rng(0).normal(0, 0.2, (3000, 4, 5))
    assert flaws(exabooster_figures.statistics_figure(rows)) == []


def test_an_annealing() -> None:
    generator = np.random.default_rng(0)
    fields = [generator.normal(size=(32, 32)) for _ in range(5)]
    structure = generator.uniform(size=(31, 200))
    episode = AnnealingEpisode(np.full(31, 0.8), structure, np.full(30, -0.01), fields, [0, 8, 15, 22, 30])
    assert flaws(film_figure(episode, "Constant 0.8", structure[0])) == []


@pytest.mark.parametrize("title", ["recurrent DQN  episode 10", "a run with a longer name than usual"])
def test_a_moment_of_an_episode(title: str) -> None:
    episode = PlayedEpisode(np.zeros((501, 4)), np.full(501, -3.3333))
    assert flaws(moment_figure(render.find("CartPole-v1"), episode, 500, title)) == []


def test_standings_of_a_sweep() -> None:
    values = {"agent.learning_rate": 1e-3, "workflow.updates_per_iteration": 4, "agent.gamma": 0.99}
    standings = [SimpleNamespace(values=values, low=400, high=500, metric=450) for _ in range(30)]
    plan = SimpleNamespace(spec=SimpleNamespace(metric="eval_return"))
    sweep: Any = SimpleNamespace(standings=standings, path="sweep", _plan=plan)
    assert flaws(Sweep.plot(sweep)) == []


def test_a_collision_is_found() -> None:
    figure = Figure()
    figure.text(0.5, 0.5, "one text")
    figure.text(0.5, 0.51, "another")
    figure.text(0.99, 0.1, "a text that is cut off")
    assert len(flaws(figure)) == 2
