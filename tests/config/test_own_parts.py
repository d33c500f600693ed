"""Parts of one's own are stored with a run by name, and found again by other processes in other folders."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from jaxrl_hpc import config as configs
from jaxrl_hpc import user_code
from jaxrl_hpc.config import registry
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.sweeps.directory import SweepDirectory
from jaxrl_hpc.sweeps.plan import make_plan
from jaxrl_hpc.sweeps.slurm import script
from jaxrl_hpc.sweeps.spec import load_spec

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"
PLUGIN = EXAMPLES / "plugin"


@pytest.fixture(autouse=True)
def _own_search_path(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(user_code, "_appended", [])


def project(folder: Path, module: str) -> Path:
    """A user's folder: an agent in a file and a config that names it. Names differ from test to test."""
    folder.mkdir(exist_ok=True)
    shutil.copy(EXAMPLES / "agent.py", folder / f"{module}.py")
    settings = yaml.safe_load((EXAMPLES / "agent.yaml").read_text())
    settings["agent"] = {"name": f"{module}:make", "network": {"hidden": [8]}}
    settings["run"] |= {"total_env_steps": 4096, "eval_every": 0, "tensorboard": False}
    settings["workflow"] = {"name": "fused", "num_envs": 4, "unroll_length": 32}
    (folder / "mine.yaml").write_text(yaml.safe_dump(settings))
    return folder / "mine.yaml"


def test_the_folder_of_a_config_is_searched_and_kept(tmp_path, monkeypatch):
    path = project(tmp_path / "project", "agent_kept")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    config = configs.load(path)
    assert config.run.code_dirs == (str(tmp_path / "project"),)
    assert configs.from_dict(config.to_dict()) == config


def test_the_working_directory_is_searched_and_kept(tmp_path, monkeypatch):
    path = project(tmp_path / "project", "agent_here")
    monkeypatch.chdir(tmp_path / "project")
    config = configs.from_dict(yaml.safe_load(path.read_text()))
    assert config.run.code_dirs == (str(tmp_path / "project"),)


def test_configs_that_name_no_code_of_ones_own_keep_no_folder():
    assert configs.load("cartpole_dqn").run.code_dirs == ()
    assert str(ROOT / "configs") not in sys.path


def test_installed_packages_need_no_folder():
    assert user_code.folder_of("json:dumps") is None and user_code.folder_of("yaml:dump") is None
    assert user_code.folder_of("no_such_module_at_all:make") is None


def test_a_run_does_not_get_another_module_of_the_same_name(tmp_path, monkeypatch):
    """The first one is imported already; the second must not be taken for it."""
    first, second = (project(tmp_path / name, "agent_twice") for name in ("one", "two"))
    monkeypatch.chdir(tmp_path)
    configs.load(first)
    saved = yaml.safe_load(second.read_text())
    saved["run"]["code_dirs"] = [str(second.parent)]
    with pytest.raises(UserError, match=r"module 'agent_twice' comes from .*one, but the run was made with"):
        configs.from_dict(saved)


def test_a_module_that_is_gone_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved = {"agent": {"name": "agent_gone:make"}, "env": {"name": "CartPole-v1"}}
    saved["run"] = {"code_dirs": [str(tmp_path / "project")]}
    with pytest.raises(UserError, match=r"agent.name: there is no module 'agent_gone'; .*project"):
        configs.from_dict(saved)


def test_plans_of_sweeps_carry_the_folder_into_job_arrays(tmp_path, monkeypatch):
    project(tmp_path / "project", "agent_swept")
    sweep = {"base": "mine.yaml", "axes": {"agent.gamma": [0.9, 0.95]}}
    (tmp_path / "project" / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    monkeypatch.chdir(tmp_path)
    plan = make_plan(load_spec("project/sweep.yaml"))
    directory = SweepDirectory(tmp_path / "results")
    plan_file = directory.freeze(plan)
    assert yaml.safe_load(plan_file.read_text())["base"]["run"]["code_dirs"] == [str(tmp_path / "project")]
    assert str(plan_file) in script(plan, plan_file, directory, [0])


def test_where_code_lies_does_not_change_what_a_trial_is(tmp_path, monkeypatch):
    """A sweep that is continued from another place knows its trials."""
    project(tmp_path / "project", "agent_moved")
    monkeypatch.chdir(tmp_path / "project")
    (tmp_path / "project" / "sweep.yaml").write_text("base: mine.yaml\naxes: {agent.gamma: [0.9]}\n")
    spec = load_spec("sweep.yaml")
    base = spec.base | {"run": spec.base["run"] | {"code_dirs": [*spec.base["run"]["code_dirs"], "/tmp"]}}
    assert make_plan(spec.model_copy(update={"base": base})).trials[0].id == make_plan(spec).trials[0].id


def command(folder: Path, *words: str, path: str = "") -> str:
    """`jaxrl-hpc …` in a process and a folder of its own."""
    folder.mkdir(exist_ok=True)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), path]))}
    arguments = [sys.executable, "-m", "jaxrl_hpc.cli.main", *words]
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.full
def test_every_command_finds_an_agent_of_ones_own(tmp_path):
    """Each in a new process, in a folder that has nothing to do with the code."""
    path, away, run = project(tmp_path / "project", "my_agent"), tmp_path / "away", str(tmp_path / "run")
    command(tmp_path / "project", "train", path.name, "--run-dir", run)
    result = json.loads(command(away, "evaluate", run, "--episodes", "4", "--json"))
    assert result["env_steps"] == 4096
    assert "my_agent:make on CartPole-v1" in command(away, "export", run)
    assert "wrote" in command(away, "play", run, "--frames", "4")
    assert "wrote" in command(away, "report", run)
    assert "already finished" in command(away, "train", f"{run}/config.yaml", "--run-dir", run, "--resume")
    (tmp_path / "project" / "sweep.yaml").write_text(
        "base: mine.yaml\naxes: {agent.learning_rate: [1e-3, 3e-3]}\ntrials_per_task: 1\n"
    )
    sweep = tmp_path / "sweep"
    command(tmp_path / "project", "sweep", "plan", "sweep.yaml", "--dir", str(sweep))
    text = command(away, "sweep", "run", str(tmp_path / "project" / "sweep.yaml"), "--dir", str(sweep))
    assert "learning_rate" in text and len([*sweep.glob("trials/*/summary.json")]) == 2
    assert "wrote" in command(away, "report", str(sweep))


@pytest.fixture
def installed(tmp_path):
    """The example package as pip would install it: its module, and the entry points of its metadata."""
    import tomllib

    project_ = tomllib.loads((PLUGIN / "pyproject.toml").read_text())
    folder = tmp_path / "site"
    info = folder / "bandit_plugin-0.1.0.dist-info"
    info.mkdir(parents=True)
    for module in project_["tool"]["setuptools"]["py-modules"]:
        shutil.copy(PLUGIN / f"{module}.py", folder)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bandit-plugin\nVersion: 0.1.0\n")
    groups = project_["project"]["entry-points"]
    (info / "entry_points.txt").write_text(
        "\n".join(
            textwrap.dedent(f"[{group}]\n")
            + "\n".join(f"{name} = {target}" for name, target in entries.items())
            for group, entries in groups.items()
        )
    )
    return folder


def test_a_plug_in_package_adds_names(installed, monkeypatch):
    monkeypatch.syspath_prepend(str(installed))
    assert registry.plugins("agent") == {"gradient_bandit": "bandit_plugin:make"}
    config = configs.load(PLUGIN / "bandit.yaml")
    assert config.agent.name == "gradient_bandit" and config.env.name == "Arms-v0"
    assert config.run.code_dirs == ()  # it is installed, wherever that is
    with pytest.raises(UserError, match="there is no agent 'gradient_bandid'; did you mean gradient_bandit"):
        registry.find("agent", "gradient_bandid")
    with pytest.raises(UserError, match="learning_rat: unknown key; did you mean learning_rate"):
        configs.from_dict(
            {"agent": {"name": "gradient_bandit", "learning_rat": 1}, "env": {"name": "Arms-v0"}}
        )


def test_parts_of_a_plug_in_package_by_the_api(installed, monkeypatch):
    import jax

    import jaxrl_hpc as rl

    monkeypatch.syspath_prepend(str(installed))
    env = rl.envs.make("Arms-v0", kwargs={"arms": 3})
    assert "Arms-v0" in rl.envs.names() and env.spec.num_actions == 3 and env.spec.name == "Arms-v0"
    agent = rl.agents.gradient_bandit(env.spec, learning_rate=1.0)
    flow = rl.workflows.fused(env, agent, num_envs=16, unroll_length=16)
    state, _ = jax.jit(flow.step)(flow.init(jax.random.key(0)), 60)
    assert flow.learner(state).params.argmax() == 2


@pytest.mark.full
def test_a_run_of_a_plug_in_package(installed, tmp_path):
    run = str(tmp_path / "run")
    command(tmp_path, "train", str(PLUGIN / "bandit.yaml"), "--run-dir", run, path=str(installed))
    result = json.loads(command(tmp_path, "evaluate", run, "--json", path=str(installed)))
    assert (
        result["env"] == "Arms-v0" and result["eval_return_score"] > 6.5
    )  # 7.5 is the best arm, 3.75 random
    assert "gradient_bandit on Arms-v0" in command(tmp_path, "export", run, path=str(installed))
