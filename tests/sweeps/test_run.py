"""Running tasks: each trial as if alone, once, whatever happens in between."""

import json
import os
import re
import shutil
import signal

import numpy as np
import pyarrow.parquet as pq
import pytest

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.metrics.parquet import read_metrics, without_clock
from jaxrl_hpc.runs.lock import RunLock
from jaxrl_hpc.runtime import trainer
from jaxrl_hpc.runtime.train import train
from jaxrl_hpc.sweeps import run as sweep_run
from jaxrl_hpc.sweeps.collect import standings, write_table
from jaxrl_hpc.sweeps.directory import SweepDirectory
from jaxrl_hpc.sweeps.run import run_task
from jaxrl_hpc.sweeps.status import sweep_status
from tests import small
from tests.sweeps.made_sweeps import made, plan_of, write
from tests.tiers import quick

AXES = {"agent.learning_rate": [1e-3, 1e-2, 1e38], "replay.alpha": [0.4, 0.6]}  # 1e38: not a number at once


def quiet(_):
    pass


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A sweep of six trials in one task, one seed; two of them diverge."""
    plan, directory = made(tmp_path_factory.mktemp("sweep"), axes=AXES)
    assert run_task(plan, directory, 0, quiet).state == sweep_run.DONE
    return plan, directory


@pytest.fixture
def copy(finished, tmp_path):
    plan, directory = finished
    shutil.copytree(directory.path, tmp_path / "copy")
    return plan, SweepDirectory(tmp_path / "copy")


def rows(folder):
    return str(without_clock(read_metrics(folder)).to_pylist())  # text: not-a-number equals itself


@pytest.mark.parametrize("number", quick([0, 3, 4], [3]))
def test_a_packed_trial_is_its_solo_run_bit_for_bit(finished, tmp_path, number):
    plan, directory = finished
    trial = plan.trials[number]
    alone = train(trial.config, tmp_path / "alone", say=quiet).summary
    packed = directory.result(trial.id)
    for key in (
        "params_sha256",
        "eval_return_score",
        "eval_return_interval",
        "env_steps",
        "updates",
        "seeds",
    ):
        assert packed[key] == alone[key], key
    assert packed["eval_return_per_seed"] == alone["eval_return_per_seed"]
    assert rows(directory.trials / trial.id) == rows(tmp_path / "alone")


@pytest.mark.full
def test_under_vmap_a_trial_is_its_solo_run_within_tolerance(finished, tmp_path):
    """Over the first log points: learning amplifies the last digit of a float from then on."""
    plan, directory = made(tmp_path, axes=AXES, run={"seeds_mode": "vmap"})
    assert run_task(plan, directory, 0, quiet).state == sweep_run.DONE
    solo_plan, solo = finished
    for stacked_trial, solo_trial in zip(plan.trials, solo_plan.trials, strict=True):
        assert stacked_trial.values == solo_trial.values and stacked_trial.id != solo_trial.id
        stacked, single = (
            read_metrics(d.trials / t.id).to_pandas()
            for d, t in ((directory, stacked_trial), (solo, solo_trial))
        )
        assert list(stacked.columns) == list(single.columns)
        for name in ("loss", "episode_return", "episodes"):
            first = [frame[frame.kind == "train"][name].to_numpy()[:2] for frame in (stacked, single)]
            np.testing.assert_allclose(*first, rtol=2e-3, err_msg=f"{name} of {stacked_trial.values}")
        assert directory.result(stacked_trial.id)["status"] == solo.result(solo_trial.id)["status"]


def test_a_diverged_trial_is_recorded_and_does_not_spoil_its_neighbours(finished):
    plan, directory = finished
    for trial in plan.trials:
        result = directory.result(trial.id)
        diverges = trial.values["agent.learning_rate"] == 1e38
        assert result["status"] == ("diverged" if diverges else "finished")
        assert result["diverged_at"] == (68 + 200 if diverges else None)  # warm-up, first log point
    assert all(standing.values["agent.learning_rate"] < 1 for standing in standings(plan, directory))


def test_a_trial_folder_is_a_run(finished):
    plan, directory = finished
    folder = directory.trials / plan.trials[0].id
    assert sorted(p.name for p in folder.iterdir()) == ["config.yaml", "metrics", "summary.json"]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["values"] == plan.trials[0].values and summary["trials_side_by_side"] == 6
    table = read_metrics(folder)
    assert "trial" not in table.column_names and set(table["seed"].to_pylist()) == {0}
    assert not (directory.task(plan.tasks[0]) / "work").exists()


def trained(monkeypatch):
    """Names of the lanes of every call of train from now on."""
    calls = []

    def spy(config, folder, *, lanes, **keys):
        calls.append([lane.name for lane in lanes])
        return train(config, folder, lanes=lanes, **keys)

    monkeypatch.setattr(sweep_run, "train", spy)
    return calls


def contents(folder):
    return {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


def test_what_is_finished_is_never_touched(copy, monkeypatch):
    plan, directory = copy
    calls, before = trained(monkeypatch), contents(directory.trials)
    assert run_task(plan, directory, 0, quiet).state == sweep_run.DONE
    assert calls == [] and contents(directory.trials) == before


@pytest.mark.parametrize("damage", quick(["cut", "gone", "no metrics", "another's"], ["cut"]))
def test_a_broken_trial_is_run_again_alone(copy, monkeypatch, damage):
    plan, directory = copy
    broken, other = plan.trials[1], plan.trials[2]
    folder = directory.trials / broken.id
    whole, before = rows(folder), contents(directory.trials)
    hashed = directory.result(broken.id)["params_sha256"]
    summary = folder / "summary.json"
    if damage == "cut":
        summary.write_text(summary.read_text()[:50])
    elif damage == "gone":
        summary.unlink()
    elif damage == "no metrics":
        shutil.rmtree(folder / "metrics")
    else:
        shutil.copy(directory.trials / other.id / "summary.json", summary)
    assert sweep_status(plan, directory).counts == {"finished": 3, "diverged": 2, "missing": 1}
    calls = trained(monkeypatch)
    assert run_task(plan, directory, 0, quiet).state == sweep_run.DONE
    assert calls == [[broken.id]]
    assert rows(folder) == whole and directory.result(broken.id)["params_sha256"] == hashed
    (kept,) = (directory.path / "broken").iterdir()  # what could not be read is not deleted
    assert kept.name.startswith(broken.id) and (kept / "config.yaml").is_file()
    untouched = {p: t for p, t in contents(directory.trials).items() if broken.id not in str(p)}
    assert untouched == {p: t for p, t in before.items() if broken.id not in str(p)}


@pytest.mark.parametrize("damage", ["gone", "cut", "another's"])
def test_work_whose_trials_are_not_known_is_not_deleted(copy, damage):
    plan, directory = copy
    shutil.rmtree(directory.trials / plan.trials[0].id)
    work = directory.task(plan.tasks[0]) / "work"
    precious = work / "rung-0" / "checkpoints" / "00000000.manifest"
    precious.parent.mkdir(parents=True)
    precious.write_text("days of training")
    if damage != "gone":
        (work / "trials.json").write_text('["x' if damage == "cut" else '["x"]')
    with pytest.raises(UserError, match=r"trials\.json .*restore it, or remove that folder"):
        run_task(plan, directory, 0, quiet)
    assert precious.read_text() == "days of training"


@pytest.mark.parametrize(
    "content", ["x: 1", "[]", "5", "base: 5", "base: {}\naxes: 5", "base: {}\naxes: {1: 2}"]
)
def test_a_damaged_plan_is_named(content, copy):
    plan, directory = copy
    path = directory.plans / "0123456789ab.yaml"
    path.write_text(content)
    with pytest.raises(UserError, match=re.escape(str(path))):
        directory.check_unchanged(plan)


def test_a_changed_base_is_refused_and_more_trials_are_not(copy, tmp_path, monkeypatch):
    _, directory = copy
    with pytest.raises(UserError, match=r"another base config: agent\.gamma was 0\.99 and is 0\.5"):
        directory.freeze(plan_of(write(tmp_path, axes=AXES), "agent.gamma=0.5"))
    directory.freeze(plan_of(write(tmp_path, axes=AXES, run={"checkpoint_seconds": 7.0})))  # harmless
    grown = plan_of(write(tmp_path, axes=AXES | {"agent.learning_rate": [1e-3, 3e-3]}))
    directory.freeze(grown)
    assert sweep_status(grown, directory).others == 4  # results that this plan does not ask for: kept
    calls = trained(monkeypatch)
    run_task(grown, directory, 0, quiet)
    assert calls == [[t.id for t in grown.trials if t.values["agent.learning_rate"] == 3e-3]]


@pytest.mark.parametrize("number", quick([signal.SIGTERM, signal.SIGUSR1], [signal.SIGUSR1]))
def test_a_stopped_task_continues_with_the_same_bits(finished, tmp_path, monkeypatch, number):
    whole_plan, whole = finished
    plan, directory = made(tmp_path, axes=AXES)
    small.signal_at_chunk(monkeypatch, 3, number)
    outcome = run_task(plan, directory, 0, quiet)
    assert outcome.state == sweep_run.SAVED and "continues" in outcome.text
    status = sweep_status(plan, directory).tasks[0]
    assert status.state == "interrupted" and 0 < status.env_steps < 1200
    assert run_task(plan, directory, 0, quiet).state == sweep_run.DONE
    assert plan.id == whole_plan.id
    for trial in plan.trials:
        assert rows(directory.trials / trial.id) == rows(whole.trials / trial.id)
        assert directory.result(trial.id)["params_sha256"] == whole.result(trial.id)["params_sha256"]


def test_killed_while_writing_results_only_those_that_lack_are_written(copy, monkeypatch, tmp_path):
    plan, directory = copy
    shutil.rmtree(directory.trials)
    written = []
    write_result = SweepDirectory.write_result

    def dies_at_the_third(self, work, trial, summary, table):
        if len(written) == 2:
            (work / trial.id).mkdir()  # half of it is there
            raise KeyboardInterrupt
        written.append(trial.id)
        write_result(self, work, trial, summary, table)

    monkeypatch.setattr(SweepDirectory, "write_result", dies_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        run_task(plan, directory, 0, quiet)
    monkeypatch.undo()
    before = contents(directory.trials)
    chunks, step = [], trainer.SeedRunner.step
    monkeypatch.setattr(trainer.SeedRunner, "step", lambda self, n: (chunks.append(n), step(self, n))[1])
    assert run_task(plan, directory, 0, quiet).state == sweep_run.DONE
    assert chunks == []  # nothing was trained again
    assert sweep_status(plan, directory).counts == {"finished": 4, "diverged": 2}
    assert {p: t for p, t in contents(directory.trials).items() if p in before} == before


def test_of_two_tasks_with_the_same_trial_the_first_result_stays(copy, tmp_path):
    plan, directory = copy
    trial = plan.trials[0]
    before = contents(directory.trials)
    summary = directory.result(trial.id)
    directory.write_result(
        tmp_path / "work", trial, summary, read_metrics(directory.trials / trial.id).to_pylist()
    )
    assert contents(directory.trials) == before and not list((tmp_path / "work").iterdir())


def test_a_task_is_worked_on_by_one_process(copy):
    plan, directory = copy
    shutil.rmtree(directory.trials)
    folder = directory.task(plan.tasks[0])
    with RunLock(folder / "run.lock"):
        assert sweep_status(plan, directory).tasks[0].state == "running"
        with pytest.raises(UserError, match=f"is being written by process {os.getpid()}"):
            run_task(plan, directory, 0, quiet)


def test_collect(finished, tmp_path):
    plan, directory = finished
    write_table(plan, directory, tmp_path / "deep" / "results.parquet")
    table = pq.read_table(tmp_path / "deep" / "results.parquet").to_pandas()
    assert list(table.trial) == [trial.id for trial in plan.trials]
    assert table["agent.learning_rate"].tolist() == [t.values["agent.learning_rate"] for t in plan.trials]
    good = table[table.status == "finished"]
    assert len(good) == 4 and good.eval_return.notna().all() and (good.env_steps == 1200).all()
    best = standings(plan, directory)[0]
    assert best.metric == good.eval_return.max() and best.seeds == 1


def test_a_metric_that_is_not_evaluated_is_refused_before_training(tmp_path):
    plan, directory = made(tmp_path, axes=AXES, metric="eval_improvement")
    with pytest.raises(
        UserError, match="metric: 'eval_improvement' is not evaluated here; known are eval_return"
    ):
        run_task(plan, directory, 0, quiet)
