"""Phase timers and traces of a run, alone, resumed, and merged over ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jaxrl_hpc import config as configs
from jaxrl_hpc.metrics.parquet import read_metrics, without_clock
from jaxrl_hpc.metrics.trace import Trace, merge
from jaxrl_hpc.report.page import write_report
from jaxrl_hpc.runtime import train
from tests import small

RUN = {"total_env_steps": 2000, "log_every": 400, "eval_every": 800, "final_eval_episodes": 4}


def events(folder: Path) -> list[dict]:
    return [e for e in json.loads((folder / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "plain"
    train.train(small.config(run=RUN), folder, say=lambda _: None)
    return folder


def test_phases_add_up_and_change_nothing(plain: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    outcome = train.train(small.config(run=RUN | {"profile": True}), folder, say=lambda _: None)
    rows = read_metrics(folder).to_pandas()
    rows = rows[rows.kind == "train"]
    phases = [name for name in rows.columns if name.startswith("time/")]
    assert {"time/acting", "time/replay", "time/learning", "time/evaluating", "time/dispatching"} <= set(
        phases
    )
    assert 0 < rows[phases].sum().sum() <= outcome.summary["wall_seconds"]
    computed = rows[["time/acting", "time/replay", "time/learning"]].sum().sum()
    traced = sum(event["dur"] for event in events(folder) if event["name"] == "computing") / 1e6
    assert computed == pytest.approx(traced, rel=1e-3, abs=1e-5) and computed > 0
    with_profile = without_clock(read_metrics(folder)).to_pylist()
    assert str(with_profile) == str(without_clock(read_metrics(plain)).to_pylist())
    names = {event["name"] for event in events(folder)}
    assert {"computing", "logging", "saving", "evaluating", "final evaluation"} <= names
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in events(folder))
    assert not (folder / "trace_parts").exists() and not (plain / "trace.json").exists()
    page = write_report([folder], tmp_path / "page.html").read_text()
    assert '"id":"time-split"' in page and '"name":"learning"' in page


def test_agents_without_a_replay_have_two_parts(tmp_path: Path) -> None:
    data = small.data(run=RUN | {"profile": True}, agent={"name": "ppo", "network": {"hidden": [16]}})
    del data["replay"]
    data["workflow"]["unroll_length"] = 16
    train.train(configs.from_dict(data), tmp_path / "run", say=lambda _: None)
    found = {name for name in read_metrics(tmp_path / "run").column_names if name.startswith("time/")}
    assert {"time/acting", "time/learning"} <= found and "time/replay" not in found


def test_a_resumed_run_goes_on_in_its_trace(tmp_path: Path, monkeypatch) -> None:
    config = small.config(run=RUN | {"profile": True})
    small.signal_at_chunk(monkeypatch, 3)
    assert not train.train(config, tmp_path / "run", say=lambda _: None).finished
    before = events(tmp_path / "run")
    assert train.train(config, tmp_path / "run", resume=True, say=lambda _: None).finished
    after = events(tmp_path / "run")
    assert after[: len(before) - 1] == before[: len(before) - 1]  # the last save may end after its checkpoint
    computed = [event["args"]["iteration"] for event in after if event["name"] == "computing"]
    assert computed == sorted(set(computed)) and len(computed) == 5


def test_ranks_are_merged(tmp_path: Path) -> None:
    for rank in range(3):
        trace = Trace(rank, active=True)
        with trace.span("computing"):
            pass
        trace.shares = {"acting": 0.25, "learning": 0.75}
        taken = trace.take()
        assert set(taken) == {"time/acting", "time/learning"} and trace.take() == {}
        assert taken["time/learning"] == pytest.approx(3 * taken["time/acting"])
        trace.write(tmp_path)
    merge(tmp_path)
    assert [event["pid"] for event in events(tmp_path)] == [0, 1, 2]
    everything = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    labels = [event["args"]["name"] for event in everything if event["ph"] == "M"]
    assert [label.split(" on ")[0] for label in labels] == ["rank 0", "rank 1", "rank 2"]


def test_a_trace_that_is_off_keeps_nothing() -> None:
    trace = Trace(0, active=False)
    with trace.span("computing"):
        pass
    assert trace.take() == {} and trace.events == []
