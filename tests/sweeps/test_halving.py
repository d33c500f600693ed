"""Successive halving: who goes on, and that going on changes nothing."""

import json

import pytest

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.metrics.parquet import read_metrics, without_clock
from jaxrl_hpc.runtime.train import train
from jaxrl_hpc.sweeps import halving
from jaxrl_hpc.sweeps.run import DONE, WAITING, run_task
from jaxrl_hpc.sweeps.status import sweep_status
from tests.sweeps.made_sweeps import made, plan_of, write

HALVING = {"rungs": 2, "factor": 3}


def quiet(_):
    pass


@pytest.fixture
def six(tmp_path):
    """Six combinations of two seeds, in two tasks; nothing is trained."""
    axes = {"agent.gamma": [0.5, 0.6, 0.7], "agent.n_step": [1, 2]}
    return made(tmp_path, axes=axes, seeds=2, halving=HALVING)


def score(plan, directory, rung, values, diverged=()):
    """Scores by gamma, for every task; a task at a time, as they would come."""
    for task in plan.tasks:
        entries = [
            {"trial": t.id, "eval_return": values[t.values["agent.gamma"]], "diverged": t.id in diverged}
            for t in task.trials
        ]
        halving.write_scores(plan, directory, task, rung, entries)


def test_budgets(tmp_path):
    plan = plan_of(write(tmp_path, run={"total_env_steps": 900}, halving={"rungs": 3, "factor": 3}))
    assert halving.budgets(plan.spec, plan.trials[0].config) == [100, 300, None]
    assert halving.budgets(plan_of(write(tmp_path)).spec, plan.trials[0].config) == [None]


def test_the_best_third_goes_on_with_all_its_seeds(six):
    plan, directory = six
    score(plan, directory, 0, {0.5: 1.0, 0.6: 3.0, 0.7: 2.0})
    going_on = halving.survivors(plan, directory, 0)
    assert going_on == {t.id for t in plan.trials if t.values["agent.gamma"] == 0.6}
    assert len(going_on) == 4  # two of six combinations, two seeds each


def test_nothing_is_decided_before_all_scores_are_there(six):
    plan, directory = six
    score(plan, directory, 0, {0.5: 1.0, 0.6: 3.0, 0.7: 2.0})
    (directory.scores(plan, 0) / f"{plan.tasks[1].id}.json").unlink()
    assert halving.survivors(plan, directory, 0) is None


def test_one_diverged_seed_takes_its_combination_out(six):
    plan, directory = six
    bad = next(t for t in plan.trials if t.values == {"agent.gamma": 0.6, "agent.n_step": 1})
    score(plan, directory, 0, {0.5: 1.0, 0.6: 3.0, 0.7: 2.0}, {bad.id})
    kept = {(t.values["agent.gamma"], t.values["agent.n_step"]) for t in plan.trials
            if t.id in halving.survivors(plan, directory, 0)}  # fmt: skip
    assert (0.6, 2) in kept and (0.6, 1) not in kept and len(kept) == 2
    score(plan, directory, 0, {0.5: 1.0, 0.6: 3.0, 0.7: 2.0}, {t.id for t in plan.trials})
    assert halving.survivors(plan, directory, 0) == set()


def test_the_smallest_can_be_the_best(tmp_path):
    axes = {"agent.gamma": [0.5, 0.6, 0.7]}
    plan, directory = made(tmp_path, axes=axes, halving=HALVING, goal="minimise")
    score(plan, directory, 0, {0.5: 1.0, 0.6: 3.0, 0.7: 2.0})
    assert halving.survivors(plan, directory, 0) == {plan.trials[0].id}


def test_a_halving_sweep_cannot_grow(six, tmp_path):
    plan, directory = six
    score(plan, directory, 0, {0.5: 1.0, 0.6: 3.0, 0.7: 2.0})
    grown = plan_of(write(tmp_path, axes={"agent.gamma": [0.5, 0.9]}, seeds=2, halving=HALVING))
    with pytest.raises(UserError, match="holds a halving of other trials"):
        directory.freeze(grown)


def test_a_trial_that_goes_on_is_as_if_it_had_never_been_compared(tmp_path):
    """Two tasks: the first waits for the second's scores, then continues its lane from the rung."""
    axes = {"agent.learning_rate": [1e-3, 1e-2, 1e38], "agent.n_step": [1, 2]}
    plan, directory = made(tmp_path, axes=axes, halving=HALVING)
    for _ in range(2):  # once more: nothing is lost, nothing is done twice
        assert run_task(plan, directory, 0, quiet).state == WAITING
    assert [task.state for task in sweep_status(plan, directory).tasks] == ["waiting", "to do"]
    assert run_task(plan, directory, 1, quiet).state == DONE
    assert run_task(plan, directory, 0, quiet).state == DONE
    results = {trial.id: directory.result(trial.id) for trial in plan.trials}
    states = sorted(result["status"] for result in results.values())
    assert states == ["diverged"] * 2 + ["finished"] * 2 + ["stopped"] * 2
    # a third of 1200 steps, in whole chunks of 200 after the replay has been filled
    assert {r["env_steps"] for r in results.values() if r["status"] == "stopped"} <= {64 + 400, 68 + 400}
    scores = halving.read_scores(plan, directory, 0)
    best = sorted((v for v in scores.values() if v is not None), reverse=True)[:2]
    finished = [trial for trial in plan.trials if results[trial.id]["status"] == "finished"]
    assert sorted((scores[trial.id] for trial in finished), reverse=True) == best
    for trial in finished:
        alone = train(trial.config, tmp_path / trial.id, say=quiet).summary
        assert alone["params_sha256"] == results[trial.id]["params_sha256"]
        tables = [without_clock(read_metrics(f)) for f in (tmp_path / trial.id, directory.trials / trial.id)]
        assert str(tables[0].to_pylist()) == str(tables[1].to_pylist())
        clock = read_metrics(directory.trials / trial.id)["wall_seconds"].to_pylist()
        assert clock == sorted(clock)  # time goes on over the rung


@pytest.mark.full
def test_stacked_lanes_go_on_with_their_own_state(tmp_path):
    """Under vmap the state of a lane is a slice: the one that goes on must get its own."""
    axes = {"agent.learning_rate": [1e38, 1e-2, 1e38]}
    plan, directory = made(tmp_path, axes=axes, halving=HALVING, run={"seeds_mode": "vmap"}, seeds=2)
    assert run_task(plan, directory, 0, quiet).state == DONE
    states = {trial.id: directory.result(trial.id)["status"] for trial in plan.trials}
    assert len(states) == 4  # the same value twice is one trial
    for trial in plan.trials:
        went_on = trial.values["agent.learning_rate"] == 1e-2
        assert states[trial.id] == ("finished" if went_on else "diverged")
        table = read_metrics(directory.trials / trial.id).to_pandas()
        assert set(table.seed) == {trial.seed}
        losses = table[table.kind == "train"].loss
        assert losses.notna().all() == went_on and len(losses) == (6 if went_on else 2)


@pytest.mark.full
def test_a_broken_result_is_made_again_without_changing_the_decision(tmp_path):
    plan, directory = made(tmp_path, axes={"agent.learning_rate": [1e-3, 3e-3, 1e-2]}, halving=HALVING)
    assert run_task(plan, directory, 0, quiet).state == DONE
    before = {t.id: directory.result(t.id) for t in plan.trials}
    scores = halving.read_scores(plan, directory, 0)
    for status in ("stopped", "finished"):
        broken = next(i for i, r in before.items() if r["status"] == status)
        (directory.trials / broken / "summary.json").write_text("{")
        assert run_task(plan, directory, 0, quiet).state == DONE
        again = directory.result(broken)
        for key in ("status", "params_sha256", "eval_return", "env_steps"):
            assert again[key] == before[broken][key]
    assert halving.read_scores(plan, directory, 0) == scores
    assert json.loads(next(directory.scores(plan, 0).iterdir()).read_text()) == scores
