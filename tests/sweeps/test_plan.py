"""Plans: what a trial's id depends on, and which trials share a program."""

import yaml

from jaxrl_hpc.sweeps.directory import SweepDirectory
from jaxrl_hpc.sweeps.plan import is_traced, pack
from tests.sweeps.made_sweeps import plan_of, write

AXES = {"agent.learning_rate": [1e-3, 1e-2], "agent.n_step": [1, 2], "replay.alpha": [0.4, 0.6]}


def ids(plan):
    return [trial.id for trial in plan.trials]


def test_traced_axes_share_a_program_and_static_ones_do_not(tmp_path):
    plan = plan_of(write(tmp_path, axes=AXES, seeds=3))
    assert len(plan.trials) == 24 and len(plan.tasks) == 2
    for task in plan.tasks:
        assert {trial.values["agent.n_step"] for trial in task.trials} in ({1}, {2})
        assert len({trial.id for trial in task.trials}) == 12
    config = plan.trials[0].config
    assert [is_traced(config, key) for key in AXES] == [True, False, True]
    assert not is_traced(config, "run.total_env_steps") and not is_traced(config, "agent.network.hidden")


def test_tasks_are_of_even_size(tmp_path):
    plan = plan_of(write(tmp_path, axes={"agent.learning_rate": [1e-3] * 1 + [1e-2]}, seeds=5))
    assert [len(task.trials) for task in pack(plan.trials, 4)] == [3, 3, 4]
    assert [len(task.trials) for task in pack(plan.trials, 64)] == [10]
    assert [trial for task in pack(plan.trials, 3) for trial in task.trials] == list(plan.trials)


def test_ids_depend_on_what_decides_the_result_and_on_nothing_else(tmp_path):
    plan = plan_of(write(tmp_path, axes=AXES))
    assert len(set(ids(plan))) == 8
    harmless = {"checkpoint_seconds": 1.0, "executors": 1, "tensorboard": False, "name": "other"}
    assert ids(plan_of(write(tmp_path, "renamed", run=harmless, axes=AXES))) == ids(plan)
    assert ids(plan_of(write(tmp_path, axes=AXES, trials_per_task=1))) == ids(plan)
    changed = plan_of(write(tmp_path, axes=AXES), "agent.gamma=0.5")
    assert not set(ids(changed)) & set(ids(plan))
    assert not set(ids(plan_of(write(tmp_path, axes=AXES, run={"seed": 7})))) & set(ids(plan))
    # a default that is written out means the same
    assert ids(plan_of(write(tmp_path, axes=AXES), "agent.gamma=0.99")) == ids(plan)


def test_a_grown_sweep_keeps_its_trials(tmp_path):
    plan = plan_of(write(tmp_path, axes=AXES, seeds=2))
    grown = plan_of(write(tmp_path, axes=AXES | {"agent.learning_rate": [1e-3, 1e-2, 1e-1]}, seeds=3))
    assert set(ids(plan)) < set(ids(grown))


def test_repeated_combinations_are_one_trial(tmp_path):
    plan = plan_of(write(tmp_path, axes={"agent.gamma": [0.9, 0.9, 0.5]}))
    assert len(plan.trials) == 2 and plan.repeated == 1


def test_a_trial_is_a_whole_config_of_one_seed(tmp_path):
    trial = plan_of(write(tmp_path, axes=AXES, seeds=2)).trials[1]
    data = trial.config.to_dict()
    assert data["run"]["seed"] == trial.seed == 1 and data["run"]["seeds"] == 1
    assert data["agent"]["learning_rate"] == trial.values["agent.learning_rate"]
    assert trial.id in data["run"]["name"]


def test_a_frozen_plan_means_the_same_and_needs_no_other_file(tmp_path):
    base = tmp_path / "base.yaml"
    base.write_text(yaml.safe_dump({"agent": {"name": "ppo"}, "env": {"name": "CartPole-v1"}}))
    keys = {"agent.learning_rate": {"log_uniform": [1e-4, 1e-2]}, "agent.epochs": {"random": [1, 4]}}
    plan = plan_of(write(tmp_path, base="base.yaml", axes=keys, samples=5, slurm={"options": ["--qos=x"]}))
    directory = SweepDirectory(tmp_path / "sweep")
    path = directory.freeze(plan)
    base.unlink()
    again = plan_of(path)
    assert ids(again) == ids(plan) and again.id == plan.id and again.spec == plan.spec
    assert directory.freeze(again) == path and len(list(directory.plans.iterdir())) == 1
    assert plan_of(directory.path).id == plan.id  # the folder stands for its newest plan
    assert SweepDirectory.of(again.spec, None, path).path == directory.path.resolve()
