"""The command line as a user meets it."""

import json
import subprocess
import sys

import pytest
import yaml

from jaxrl_hpc.cli.main import COMMANDS, main
from tests import small
from tests.checkpoint.test_checkpoint_faults import flip


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(small.data(run={"total_env_steps": 1200})))
    return path


def test_train_evaluate_report(config_file, tmp_path, capsys):
    run_dir = str(tmp_path / "out")
    assert main(["train", str(config_file), "--run-dir", run_dir, "agent.gamma=0.97", "run.seeds=2"]) == 0
    out = capsys.readouterr().out
    assert "dqn on CartPole-v1: return" in out and "mean, range of 2 seeds" in out
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["seeds"] == 2
    saved = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())
    assert saved["agent"]["gamma"] == 0.97 and saved["agent"]["target_every"] > 0
    assert main(["evaluate", run_dir, "--episodes", "4", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["eval_return_per_seed"]) == 2
    assert main(["evaluate", run_dir, "env.name=Acrobot-v1"]) == 2
    assert "was trained for observations of 'CartPole-v1' (obs_shape (4,))" in capsys.readouterr().err
    assert main(["report", run_dir]) == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert "CartPole-v1" in page and "learning_rate" in page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "no_such_config"], "there is no config file"),
        (["train", "CONFIG", "agent.gama=1"], "agent.gama: unknown key; did you mean gamma?"),
        (["train", "CONFIG", "agent.gamma=two"], "agent.gamma: should be a valid number"),
        (["evaluate", "nowhere"], "there is no run directory nowhere"),
        (["report", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    arguments, words, config_file, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main([str(config_file) if a == "CONFIG" else a for a in arguments]) == 2
    err = capsys.readouterr().err
    assert words in err and "Traceback" not in err
    assert len(err.strip().splitlines()) == 1


def test_overwrite_leaves_other_folders_alone(config_file, tmp_path, capsys, monkeypatch):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("years of work")
    (precious / "config.yaml").write_text("mine: true")
    assert main(["train", str(config_file), "--run-dir", str(precious), "--overwrite"]) == 2
    monkeypatch.chdir(precious)
    for name in ("..", ".", "../precious", "a/b", ".hidden", "a\nb", "", "x" * 101):
        arguments = ["train", str(config_file), "--overwrite", f"run.name={json.dumps(name)}"]
        assert main(arguments) == 2
        assert "run.name: " in capsys.readouterr().err
    assert sorted(p.name for p in precious.iterdir()) == ["config.yaml", "thesis.tex"]


def test_overwrite_moves_a_run_aside_and_a_damaged_run_is_not_begun_anew(config_file, tmp_path, capsys):
    run_dir = tmp_path / "runs" / "a"
    command = ["train", str(config_file), "--run-dir", str(run_dir)]
    assert main([*command, "--resume"]) == 0
    assert "training starts from the beginning" in capsys.readouterr().out
    assert main(["verify", str(run_dir)]) == 0
    (run_dir / "thesis.tex").write_text("years of work")
    assert main(command) == 2
    assert main([*command, "--overwrite", "replay.capacity=1000000000000"]) == 2  # refused: nothing is moved
    assert (run_dir / "summary.json").exists() and not (tmp_path / "runs" / ".trash").exists()
    assert main([*command, "--overwrite", "agent.gamma=0.9"]) == 0
    trash = tmp_path / "runs" / ".trash" / "a"
    assert f"moved to {trash}" in capsys.readouterr().out
    assert yaml.safe_load((trash / "config.yaml").read_text())["agent"]["gamma"] == 0.99
    assert yaml.safe_load((run_dir / "config.yaml").read_text())["agent"]["gamma"] == 0.9
    assert (run_dir / "thesis.tex").exists() and not (trash / "thesis.tex").exists()

    (run_dir / "summary.json").unlink()  # as if it had been killed
    whole = {path: path.read_bytes() for path in (run_dir / "checkpoints").glob("*.manifest")}
    for manifest, content in whole.items():
        manifest.write_bytes(content[:30])
    before = {
        p: p.read_bytes() for folder in ("metrics", "checkpoints") for p in (run_dir / folder).iterdir()
    }
    assert main([*command, "--resume", "agent.gamma=0.9"]) == 2
    err = capsys.readouterr().err
    assert "cannot be resumed" in err and "is not a checkpoint manifest" in err and "Traceback" not in err
    assert {
        p: p.read_bytes() for folder in ("metrics", "checkpoints") for p in (run_dir / folder).iterdir()
    } == before
    assert main(["verify", str(run_dir)]) == 1
    for manifest, content in whole.items():
        manifest.write_bytes(content)
    for path in (run_dir / "checkpoints").glob("*.arrays"):
        flip(path)  # of the right size, so that only checksums tell
    assert main([*command, "--resume", "agent.gamma=0.9"]) == 2
    err = capsys.readouterr().err
    assert "wrong checksum" in err and "Nothing was changed. Put the files back and check with" in err


@pytest.mark.parametrize("kind", ["agents", "envs", "replays", "workflows", "configs"])
def test_list(kind, capsys):
    assert main(["list", kind]) == 0
    wanted = {
        "agents": "dqn",
        "envs": "CartPole-v1",
        "replays": "uniform",
        "workflows": "fused",
        "configs": "cartpole_dqn",
    }
    assert wanted[kind] in capsys.readouterr().out


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_has_an_example_and_fits_eighty_columns(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert f"jaxrl-hpc {command}" in out.split("example", 1)[-1]
    assert max(len(line) for line in out.splitlines()) <= 80


def test_unknown_options_are_refused(config_file, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["train", str(config_file), "--fast"])
    assert caught.value.code == 2
    assert "--fast" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "show"])
def test_what_is_missing_is_named_and_nothing_else(command, capsys):
    with pytest.raises(SystemExit):
        main([command])
    assert capsys.readouterr().err.endswith("the following arguments are required: config\n")


def test_script_form():
    done = subprocess.run([sys.executable, "scripts/train.py", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "Train a config" in done.stdout


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_an_interrupt_while_modules_are_imported_is_one_word(command, tmp_path):
    """One came up in an import that catches everything, and the run trained on."""
    (tmp_path / "swallows.py").write_text(
        "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept BaseException:\n    pass\n"
    )
    code = (
        "import sys\nfrom jaxrl_hpc.cli import main\n"
        f"module = main.importlib.import_module('jaxrl_hpc.cli.{command}')\n"
        "module.add_arguments = lambda parser: __import__('swallows')\n"
        f"sys.exit(main.main(['{command}']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_an_interrupted_command_may_put_things_away(tmp_path):
    code = (
        "import os, signal, sys\nfrom jaxrl_hpc.cli import main, runs\n"
        "def run(args):\n    try:\n        os.kill(os.getpid(), signal.SIGINT)\n"
        "    finally:\n        print('put away')\n"
        "runs.run = run\nsys.exit(main.main(['runs']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "put away\n", "interrupted\n")
