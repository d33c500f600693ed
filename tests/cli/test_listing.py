"""`list`, `show` and `runs`: what a newcomer reads first, in 80 columns and without waiting for JAX."""

import json
import subprocess
import sys

import pytest
import yaml

from jaxrl_hpc.cli.main import main
from jaxrl_hpc.config.registry import ENVS
from jaxrl_hpc.config.sources import config_files
from jaxrl_hpc.envs.names import FAMILIES


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("kind", ["agents", "envs", "replays", "workflows", "configs", "sweeps"])
def test_lists_fit_eighty_columns(kind, capsys):
    assert main(["list", kind]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= 80
    wanted = {"agents": "dqn", "envs": "CartPole-v1", "replays": "uniform", "workflows": "fused"}
    assert any(wanted.get(kind, "cartpole_dqn") in line for line in lines)


@pytest.mark.parametrize("kind", ["agents", "replays", "workflows"])
def test_every_part_is_described(kind, capsys):
    assert main(["list", kind]) == 0
    lines = capsys.readouterr().out.splitlines()
    undescribed = [line for line in lines if not line.startswith(" ") and len(line.split()) < 2]
    assert not undescribed


def test_without_a_kind_there_are_numbers(capsys):
    assert main(["list"]) == 0
    rows = dict(line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:])
    assert rows["configs"] == str(len(config_files())) and rows["envs"] == str(len(ENVS))
    assert {*rows} == {"agents", "envs", "replays", "workflows", "configs", "sweeps"}


def test_every_config_is_one_line(capsys):
    assert main(["list", "configs"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert {row[0] for row in rows if len(row) == 4} - {"name"} == set(config_files())
    assert ["cartpole_dqn", "dqn", "CartPole-v1", "100k"] in rows
    assert ["workflows/cartpole_seed", "a2c", "central_inference", "500k"] in rows


def test_patterns(capsys):
    names = {"dqn": "acrobot_dqn", "ppo": "cartpole_ppo", "workflows/*": "workflows/cartpole_dyna"}
    for pattern, name in names.items():
        assert main(["list", "configs", pattern]) == 0
        out = capsys.readouterr().out
        assert name in out and "pendulum_ddpg" not in out
    assert main(["list", "configs", "nonsense"]) == 2
    assert "nothing matches 'nonsense'; jaxrl-hpc list configs shows all" in capsys.readouterr().err


def test_a_line_per_family_of_environments_and_all_names_of_one(capsys):
    assert main(["list", "envs"]) == 0
    out = capsys.readouterr().out
    for family in FAMILIES:
        assert sum(line.startswith(f"{family.title} ") for line in out.splitlines()) == 1
    assert main(["list", "envs", "minatar"]) == 0
    assert capsys.readouterr().out.count("-MinAtar") == 5
    assert [name for family in FAMILIES for name in family.names] == list(ENVS)


def test_a_file_of_the_working_directory_comes_first(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    text = {"agent": {"name": "ppo"}, "env": {"name": "Acrobot-v1"}}
    (tmp_path / "configs" / "cartpole_dqn.yaml").write_text(yaml.safe_dump(text))
    (tmp_path / "configs" / "broken.yaml").write_text("{")
    assert main(["list", "configs"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["cartpole_dqn", "ppo", "Acrobot-v1", "100k"] in rows and ["broken", "?", "?", "100k"] in rows


def test_show_marks_what_is_not_the_default(capsys):
    assert main(["show", "cartpole_dqn", "agent.gamma=0.97", "run.seeds=3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= 80
    keys = {line[2:].split()[0]: line for line in lines if line[:2] in ("  ", "* ", "+ ") and line[2] != " "}
    assert keys["gamma"].startswith("* gamma") and "0.97" in keys["gamma"]
    assert "(default: 0.99)" in keys["gamma"]
    assert keys["seeds"].startswith("* seeds") and keys["batch_size"].startswith("  batch_size")
    assert keys["unroll_length"].startswith("+ unroll_length")
    assert keys["network.hidden"].startswith("  network.hidden") and "[64, 64]" in keys["network.hidden"]
    assert "agent: dqn" in lines and "replay: uniform" in lines


def test_show_of_a_replay_that_was_filled_in_and_as_json(tmp_path, capsys):
    path = tmp_path / "short.yaml"
    path.write_text(yaml.safe_dump({"agent": {"name": "dqn"}, "env": {"name": "CartPole-v1"}}))
    assert main(["show", str(path)]) == 0
    assert "replay: uniform (suits the agent)" in capsys.readouterr().out
    assert main(["show", str(path), "agent.n_step=3", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["agent"]["n_step"] == 3 and shown["run"]["name"] == "short"
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(yaml.safe_dump(shown))
    assert main(["show", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == shown


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("agent.gama=1", "override agent.gama: unknown key; did you mean gamma?"),
        ("agnt.gamma=1", "override agnt.gamma: there is no section 'agnt'; did you mean agent?"),
        ("gamma=1", "override gamma: there is no section 'gamma'"),
        ("agent=1", "override 'agent' is a whole section"),
        ("agent.gamma=[", "override agent.gamma line 1: not valid YAML"),
        ("agent.name=dqqn", "override agent.name: there is no agent 'dqqn'; did you mean dqn?"),
        ("agent.gamma.x=1", "override agent.gamma"),
        ("agent.gamma", "override 'agent.gamma' is not of the form section.key=value"),
    ],
)
def test_errors_in_overrides_name_the_override(override, words, capsys):
    assert main(["show", "cartpole_dqn", override]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {words}") and len(err.splitlines()) == 1


QUICK = [
    ["--help"],
    ["list", "configs"],
    ["list", "envs"],
    ["list", "agents"],
    ["list", "workflows"],
    ["runs", "RUNS"],
    ["train", "no_such_config"],
    ["train", "cartpole_dqn", "agnt.gamma=1"],
    ["train", "cartpole_dqn", "--run-dir", "RUNS/taken"],
    ["show", "no_such_config"],
    ["report", "RUNS/none"],
    ["report", "RUNS"],
    ["play", "RUNS/none"],
    ["export", "RUNS/none"],
    ["record", "RUNS/none", "--out", "RUNS/data.parquet"],
    ["evaluate", "RUNS/none"],
    ["verify", "RUNS/none"],
    ["scaling", "no_such_config"],
    ["surrogate", "check", "RUNS/none"],
    ["elastic", "add", "RUNS/none"],
    ["sweep", "plan", "no_such_sweep"],
    ["actor", "RUNS/none", "--wait", "0"],
    ["actor", "RUNS/taken", "--wait", "0"],
]


def test_what_needs_no_jax_does_not_load_it(tmp_path):
    """Asked of the interpreter, not of a clock. One process for all: each must leave JAX alone."""
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "config.yaml").write_text("agent: {name: dqn}\n")
    commands = [[word.replace("RUNS", str(tmp_path)) for word in words] for words in QUICK]
    code = (
        "import sys; from jaxrl_hpc.cli.main import main\n"
        f"for command in {commands!r}:\n"
        "    try: main(command)\n"
        "    except SystemExit: pass\n"
        "    heavy = {'jax', 'flax', 'gymnax', 'matplotlib', 'pyarrow', 'jinja2'} & set(sys.modules)\n"
        "    assert not heavy, (command, heavy)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "exists already: continue it with --resume" in done.stderr and "overwrite=True" in done.stderr


def test_help_loads_nothing_to_speak_of():
    code = (
        "import sys; from jaxrl_hpc.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'jax', 'flax', 'numpy', 'pydantic', 'yaml', 'rich', 'pyarrow', 'matplotlib'}\n"
        "assert not heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_show_loads_only_the_parts_that_the_config_names():
    code = (
        "import sys; from jaxrl_hpc.cli.main import main\n"
        "assert main(['show', 'cartpole_dqn', '--json']) == 0\n"
        "assert not {'gymnax', 'matplotlib', 'jaxrl_hpc.agents.ppo'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
