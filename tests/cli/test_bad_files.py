"""Files that cannot be read or written, or hold what nobody expects: one sentence and exit code 2."""

import json
import os
import socket
import subprocess
import sys

import pytest
import yaml

from jaxrl_hpc import config as configs
from jaxrl_hpc.cli.main import main
from jaxrl_hpc.runs.directory import RunDirectory
from tests import small
from tests.report.made_runs import make_run
from tests.tiers import quick


def told(capsys, arguments):
    """The one line that a refused command prints."""
    assert main([str(a) for a in arguments]) == 2
    err = capsys.readouterr().err
    assert "Traceback" not in err and len(err.strip().splitlines()) == 1, err
    return err.strip()


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(small.data(run={"total_env_steps": 1200})))
    return path


@pytest.fixture
def finished(tiny, tmp_path):
    """A run directory with a summary, of the config `tiny`."""
    run = make_run(tmp_path / "run", seeds=2)
    RunDirectory(run).write_config(configs.load(tiny).to_dict())
    return run


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"agent: {name: dqn}\xff\n", "is not text in UTF-8: byte 18 is 0xff"),
        (b"run: 5\nagent: {name: dqn}\nenv: {name: CartPole-v1}", "run: should hold keys, such as name"),
        (b"run: []\nagent: {name: dqn}\nenv: {name: CartPole-v1}", "run: should hold keys"),
        (b"agent: [1]\nenv: {name: CartPole-v1}", "agent: should hold keys, such as name (it is [1])"),
        (b"agent: &a {name: dqn, network: *a}", "an anchor refers to itself"),
        (b"agent: &a [*a]", "an anchor refers to itself"),
        (b"[" * 5000, "nested deeper than 40 levels"),
        (b"agent: " + b"[" * 60 + b"]" * 60, "nested deeper than 40 levels"),
        (b"agent: {name: dqn, gamma: " + b"9" * 5000 + b"}", "not valid YAML"),
        (b"agent: {name: dqn, gamma: 0.9, gamma: 0.8}", "'gamma' appears twice"),
        (b"agent: {name: dqn}\nagent: {name: ppo}", "line 2: not valid YAML ('agent' appears twice)"),
        (b"agent: {name: dqn, gamma: 2024-13-45}", "month must be in 1..12"),
        (b"agent: !!python/object:os.system {}", "could not determine a constructor"),
        (BOMB.encode(), "more than 1,000,000 values with aliases expanded"),
        (b"just words", "a config holds sections"),
        (b"\0", "not valid YAML"),
    ],
)  # fmt: skip
def test_config_files(content, words, tmp_path, capsys):
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    assert words in told(capsys, ["train", path])
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_bytes(content)  # the same file as that of a run
    main(["evaluate", str(run)])
    assert "Traceback" not in capsys.readouterr().err


def test_huge_numbers_are_shown_in_short(tiny, capsys):
    line = told(capsys, ["train", tiny, f"run.seeds={'9' * 4000}"])
    assert "run.seeds" in line and len(line) < 400


def test_an_override_is_blamed_for_itself(tiny, capsys):
    line = told(capsys, ["train", tiny, "agent.gamma=two"])
    assert line.startswith("error: override agent.gamma: should be a valid number")
    assert told(capsys, ["train", tiny, "agent.network.hidden=[x]"]).startswith(
        "error: override agent.network.hidden.0"
    )
    tiny.write_text(tiny.read_text().replace("batch_size: 16", "batch_size: -1"))
    line = told(capsys, ["train", tiny, "agent.gamma=0.5"])
    assert line.startswith(f"error: {tiny}: agent.batch_size")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("summary.json", b"{"),
        ("summary.json", b"[1]"),
        ("summary.json", b"\xff\xfe"),
        ("config.yaml", b"run: 5"),
        ("config.yaml", b"\xff\xfe"),
        ("config.yaml", b"[1, 2"),
        ("config.yaml", b"5"),
    ],
)
def test_damaged_small_files_of_a_run(name, content, tiny, finished, capsys):
    run = finished
    (run / name).write_bytes(content)
    line = told(capsys, ["train", tiny, "--run-dir", run, "--resume"])
    assert name in line or "config" in line
    if content != b"run: 5":  # a report shows whatever a config says
        assert name in told(capsys, ["report", run])
    if name == "config.yaml":
        assert main(["evaluate", str(run)]) == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert lines and all(line.startswith("error: ") and "config.yaml" in line for line in lines)


def test_a_summary_that_lacks_something_or_diverged(tiny, finished, capsys):
    path = finished / "summary.json"
    summary = json.loads(path.read_text())
    again = ["train", str(tiny), "--run-dir", str(finished), "--resume"]
    path.write_text(json.dumps(summary | {"eval_return_score": None, "eval_return_interval": [None, None]}))
    assert main(again) == 0
    assert "return nan" in capsys.readouterr().out
    del summary["eval_return_interval"]
    path.write_text(json.dumps(summary))
    assert "damaged: it has no eval_return_interval" in told(capsys, again)


@pytest.mark.parametrize("value", ['"many"', "null", "[]", "{}", "1e999", "-1"])
@pytest.mark.parametrize("key", ["eval_return_score", "eval_return_interval", "env_steps", "trials", "seeds"])
def test_a_report_of_a_summary_with_odd_values(key, value, finished, tmp_path, capsys):
    run = finished
    summary = json.loads((run / "summary.json").read_text())
    text = json.dumps(summary | {key: "HERE"}).replace('"HERE"', value)
    (run / "summary.json").write_text(text)
    assert main(["report", str(run)]) in (0, 2)
    assert main(["runs", str(tmp_path)]) == 0
    assert "Traceback" not in capsys.readouterr().err


def test_paths_that_cannot_be(tiny, tmp_path, capsys):
    assert "File name too long" in told(capsys, ["train", tiny, "--run-dir", tmp_path / ("x" * 300)])
    assert "File name too long" in told(capsys, ["train", "x" * 5000])
    assert "File name too long" in told(capsys, ["evaluate", "x" * 5000])
    assert "File name too long" in told(capsys, ["sweep", "plan", "x" * 5000])
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "run.lock").mkdir()
    assert "run.lock" in told(capsys, ["train", tiny, "--run-dir", tmp_path / "a"])
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "loop" in told(capsys, ["train", tiny, "--run-dir", tmp_path / "loop"])
    assert "loop" in told(capsys, ["train", tmp_path / "loop"])
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    assert "gone" in told(capsys, ["train", tiny, "--run-dir", tmp_path / "gone"])


@pytest.mark.parametrize(
    "lock", ['{"host": "HOST", "pid": "x"}', '{"host": "HOST", "pid": 1e99}', "[]", "\x00"]
)
def test_a_damaged_lock_is_nobodys(lock, finished, tmp_path, capsys):
    run = finished
    (run / "run.lock").write_text(lock.replace("HOST", socket.gethostname()))
    (run / "summary.json").unlink()
    assert main(["runs", str(tmp_path)]) == 0
    assert "stopped" in capsys.readouterr().out


def test_a_report_that_cannot_be_written(finished, tmp_path, capsys):
    (tmp_path / "file").touch()
    where = tmp_path / "file" / "page.html"
    assert "page.html: File exists" in told(capsys, ["report", finished, "--output", where])


@pytest.mark.parametrize("limit", quick([100, 1500, 3000, 6000], [100, 1500]))
def test_a_disk_that_is_full(limit, tiny, tmp_path):
    """The limit on the size of files stands for it: writes fail in the same places."""
    start = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
    start += "; from jaxrl_hpc.cli.main import main; raise SystemExit(main())"
    where = ["--run-dir", str(tmp_path / "run"), "run.tensorboard=true"]
    command = [sys.executable, "-c", start, "train", str(tiny), *where]
    # compiled programs are cut short too: they must not get into the cache that tests share
    caches = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAXRL_HPC_CACHE": str(tmp_path / "cache"),
    }
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=os.environ | caches)
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 2 and len(lines) == 1, done.stderr
    assert "File too large" in lines[0] and str(tmp_path / "run") in lines[0]
    assert "Traceback" not in done.stderr
