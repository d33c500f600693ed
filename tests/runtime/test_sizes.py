"""Sizes that no machine has, and settings that would do nothing: refused before JAX computes."""

import pytest
import yaml

from jaxrl_hpc.cli.main import main
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runtime import host
from jaxrl_hpc.runtime.build import build
from jaxrl_hpc.runtime.memory import check_memory
from jaxrl_hpc.runtime.train import lanes_of, make_runner
from jaxrl_hpc.sweeps.plan import make_plan
from jaxrl_hpc.sweeps.spec import load_spec
from tests import small


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"agent": {"network": {"hidden": [-4]}}}, "network.hidden.0: should be greater than or equal to 1"),
        ({"agent": {"network": {"hidden": [0]}}}, "network.hidden.0: should be greater than or equal to 1"),
        ({"agent": {"network": {"hidden": [10**12]}}}, "hidden.0: should be less than or equal to 1000000"),
        ({"agent": {"batch_size": 10**12}}, "batch_size: should fit in 32 bits (it is 1,000,000,000,000)"),
        ({"workflow": {"num_envs": 10**12}}, "num_envs: should fit in 32 bits"),
        ({"run": {"threads": 1_000_000}}, "run.threads: should be less than or equal to 4096"),
        ({"run": {"eval_episodes": 10**12}}, "run.eval_episodes: should be less than or equal to 1000000"),
        ({"workflow": {"name": "sharded", "devices": 1_000_000}}, "workflow.devices: should be less than or"),
        ({"workflow": {"name": "sharded", "shards": 1_000_000}}, "workflow.shards: should be less than or"),
        ({"workflow": {"name": "sharded", "devices": 250}}, "devices: 250 cannot hold equal parts of 12"),
        ({"run": {"log_every": 10**400}}, "log_every: should fit in 32 bits (it has 1,329)"),
        ({"run": {"log_every": 10**20}}, "log_every: should fit in 32 bits"),
    ],
)  # fmt: skip
def test_bounds(sections, words):
    with pytest.raises(UserError) as caught:
        small.config(**sections)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"agent": {"network": {"hidden": [1_000_000, 1_000_000]}}}, "GiB of it state of 1 seeds"),
        ({"agent": {"batch_size": 10**9}}, "of it a batch of 1,000,000,000 windows of 2 steps"),
        (
            {"agent": {"network": {"hidden": [1000]}}, "run": {"eval_episodes": 1_000_000}},
            "of it an evaluation of 1,000,000 episodes",
        ),
    ],
)  # fmt: skip
def test_memory_is_estimated_from_shapes(sections, words, monkeypatch):
    monkeypatch.setattr(host, "available_memory", lambda: 2**29)
    config = small.config(**sections)
    runner = make_runner(config, build(config), lanes_of(config))
    with pytest.raises(UserError, match="the run needs") as caught:
        check_memory(config, runner)
    assert words in str(caught.value)


def test_a_run_that_fits_is_let_through(monkeypatch):
    monkeypatch.setattr(host, "available_memory", lambda: 2**29)
    config = small.config()
    assert check_memory(config, make_runner(config, build(config), lanes_of(config))) < 2**29


class Accelerator:
    """As far as the estimate looks at one."""

    platform, device_kind = "gpu", "NVIDIA H100"

    def memory_stats(self):
        return {"bytes_limit": 2**30, "bytes_in_use": 2**29}


def test_memory_of_each_accelerator_is_checked(monkeypatch):
    """Replay and copies are divided over devices, parameters are on all of them."""
    config = small.config(
        agent={"batch_size": 24},
        replay={"capacity": 12 * 2**20},
        workflow={"name": "sharded", "num_envs": 24},
    )
    parts = build(config)
    runner = make_runner(config, parts, lanes_of(config))
    monkeypatch.setattr(type(parts.workflow), "device", Accelerator())
    with pytest.raises(UserError, match=r"GiB on each NVIDIA H100 .*, but 0.5 GiB are free.*sharded"):
        check_memory(config, runner)
    whole = parts.workflow.placement(runner.state_shape())
    device = parts.workflow.layout.devices[0]
    parts.workflow.layout = parts.workflow.layout._replace(ranks=3, devices=(device,) * 2)
    part = parts.workflow.placement(runner.state_shape())
    assert (part.here, part.everywhere) == (2, 6) and whole.state / 6 < part.state < whole.state / 5
    check_memory(config, runner)
    monkeypatch.setattr(Accelerator, "memory_stats", lambda self: None)  # unknown: nothing is refused
    parts.workflow.layout = parts.workflow.layout._replace(ranks=1, devices=(device,))
    check_memory(config, runner)


@pytest.mark.parametrize("option", ["--episodes", "--frames", "--seed"])
def test_what_is_played_is_bounded(option, capsys):
    assert main(["play", "nowhere", option, str(10**12)]) == 2
    assert f"error: {option}: should be from" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "value"), [("--episodes", 10**12), ("--episodes", 0), ("--seed", 10**12)])
def test_evaluations_are_bounded(option, value, capsys):
    assert main(["evaluate", "nowhere", option, str(value)]) == 2
    assert f"error: {option}: should be from" in capsys.readouterr().err


@pytest.mark.parametrize("workflow", [{"name": "fused"}, {"name": "sharded"}])
@pytest.mark.parametrize("run", [{"record_schedule": True}, {"replay_schedule": "runs/other"}])
def test_schedules_where_there_are_none(workflow, run):
    with pytest.raises(
        UserError, match=rf"^run\.{next(iter(run))}: workflow '{workflow['name']}' always runs in"
    ):
        build(small.config(workflow=workflow, run=run))


def sweep_file(tmp_path, **settings):
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump({"base": small.data(), **settings}))
    return path


def test_trials_are_counted_before_they_are_made(tmp_path):
    grid = {"grid": [0.1, 0.9], "points": 10_000}
    axes = {"agent.gamma": grid, "agent.learning_rate": grid}
    spec = load_spec(sweep_file(tmp_path, axes=axes, seeds=10_000))
    with pytest.raises(UserError, match="axes: the sweep has 1,000,000,000,000 trials"):
        make_plan(spec)


@pytest.mark.parametrize(
    "slurm",
    [{"partition": "a\nrm -rf ~"}, {"account": "a\n"}, {"partition": "a b"}, {"modules": ["a\nrm"]},
     {"options": ["--qos=a\rb"]}, {"options": ["--qos=a\nb"]}],
)  # fmt: skip
def test_no_lines_get_into_a_job_script(slurm, tmp_path):
    with pytest.raises(UserError, match=rf"slurm\.{next(iter(slurm))}"):
        load_spec(sweep_file(tmp_path, axes={"agent.gamma": [0.9]}, slurm=slurm))


def test_a_metric_that_does_not_exist_is_refused_before_tasks_start(tmp_path, capsys):
    settings = {
        "axes": {"agent.n_step": [1, 2]},
        "metric": "eval_retrun",
        "halving": {"rungs": 2, "factor": 2},
    }
    path = sweep_file(tmp_path, **settings)
    for action in ("run", "submit"):
        assert main(["sweep", action, str(path), "--dir", str(tmp_path / "out")]) == 2
        assert "metric: 'eval_retrun' is not evaluated here" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
