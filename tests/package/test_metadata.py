"""What pyproject.toml, the citation and the code say about the package must agree."""

import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import jaxrl_hpc
from jaxrl_hpc import extras
from jaxrl_hpc.cli import install_mpi
from jaxrl_hpc.cli.main import main
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runtime.train import train
from tests import small

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# module -> distribution where the names differ
DISTRIBUTIONS = {
    "PIL": "matplotlib",
    "markupsafe": "jinja2",
    "ale_py": "ale-py",
    "mlflow": "mlflow-skinny",
    "zmq": "pyzmq",
}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", line)[0] for line in requirements}


def test_one_version_number():
    assert PROJECT["dynamic"] == ["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == jaxrl_hpc.__version__


def test_extras_are_those_that_messages_name():
    optional = PROJECT["optional-dependencies"]
    for module, extra in extras.EXTRA_OF.items():
        assert DISTRIBUTIONS.get(module, module) in names(optional[extra]), module
    held = {name for name in optional if name not in ("all", "mpi", "build", "peers", "dev", "docs")}
    assert set(re.findall(r"[\w-]+", optional["all"][0])) - {"jaxrl-hpc"} == held
    assert not names(PROJECT["dependencies"]) & {"matplotlib", "jinja2", "tensorboardX"}


def test_the_lock_has_every_dependency():
    locked = {
        line.split("==")[0] for line in (ROOT / "requirements.lock").read_text().splitlines() if "==" in line
    }
    wanted = names(
        [
            *PROJECT["dependencies"],
            *(r for name, e in PROJECT["optional-dependencies"].items() if name != "docs" for r in e),
        ]
    )
    # mpi4jax is built against the MPI that is there
    assert {name.lower() for name in wanted} - {"mpi4jax", "jaxrl-hpc"} <= {name.lower() for name in locked}


def compiled_sources() -> set[str]:
    found = [*(ROOT / "jaxrl_hpc").rglob("*.cc"), *(ROOT / "jaxrl_hpc").rglob("*.h")]
    return {path.relative_to(ROOT).as_posix() for path in found}


def test_every_compiled_source_is_built():
    named = set(re.findall(r'"(jaxrl_hpc/[^"]+\.(?:cc|h))"', (ROOT / "setup.py").read_text()))
    assert named == compiled_sources()


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_builds_again_when_a_compiled_source_changes():
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    rules = subprocess.run(
        ["make", "-pn", "help"], cwd=ROOT, env=outside, capture_output=True, text=True, check=True
    )
    (rule,) = re.findall(r"^\.venv/\.installed: (.*)$", rules.stdout, re.MULTILINE)
    assert compiled_sources() <= set(rule.split())


def block(monkeypatch, *modules: str) -> None:
    """As if these were not installed."""

    class Blocked:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name.partition(".")[0] in modules:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            return None

    for name in [name for name in sys.modules if name.partition(".")[0] in modules]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Blocked, *sys.meta_path])


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(small.config(run={"total_env_steps": 1200, "tensorboard": False}), folder)
    return folder


def forget(monkeypatch, *prefixes: str) -> None:
    for name in [name for name in sys.modules if name.startswith(prefixes)]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize(
    ("module", "command", "sentence"),
    [
        ("jinja2", "report", 'this needs jinja2, which is not installed: pip install "jaxrl-hpc[report]"'),
        (
            "matplotlib",
            "play",
            'this needs matplotlib, which is not installed: pip install "jaxrl-hpc[plots]"',
        ),
    ],
)
def test_a_missing_extra_is_one_sentence(module, command, sentence, run_dir, monkeypatch, capsys):
    forget(monkeypatch, "jaxrl_hpc.report")
    block(monkeypatch, module)
    assert main([command, str(run_dir)]) == 2
    assert capsys.readouterr().err == f"error: {sentence}\n"


@pytest.mark.full
def test_training_goes_on_without_pictures_and_tensorboard(tmp_path, monkeypatch):
    importlib.import_module("jaxrl_hpc.envs.gymnax_api")  # gymnax has matplotlib as a dependency of its own
    forget(monkeypatch, "jaxrl_hpc.report", "jaxrl_hpc.metrics.tensorboard")
    block(monkeypatch, "matplotlib", "tensorboardX")
    said: list[str] = []
    outcome = train(small.config(run={"total_env_steps": 1200}), tmp_path / "run", say=said.append)
    assert outcome.finished
    assert 'no TensorBoard files, tensorboardX is not installed: pip install "jaxrl-hpc[tensorboard]"' in said
    assert 'no pictures, matplotlib is not installed: pip install "jaxrl-hpc[plots]"' in said


def test_other_missing_modules_are_not_taken_for_extras():
    with pytest.raises(ModuleNotFoundError), extras.missing_extras_told():
        raise ModuleNotFoundError("No module named 'mine'", name="mine")
    with pytest.raises(UserError, match=r"jaxrl-hpc\[external\]"), extras.missing_extras_told():
        raise ModuleNotFoundError("No module named 'envpool.core'", name="envpool.core")


def test_mpi_is_built_for_the_mpi_in_use(monkeypatch):
    declared = [
        f'{line}; extra == "{e}"' for e in ("mpi", "build") for line in PROJECT["optional-dependencies"][e]
    ]
    monkeypatch.setattr(install_mpi.importlib.metadata, "requires", lambda _: ["jax>=0.10", *declared])
    own = install_mpi.commands(["pip", "install"], cluster=False)
    assert any(word.startswith("mpich==") for word in own[0]) and "--no-binary" not in own[0]
    assert own[1][-1].startswith("mpi4jax==") and "--no-build-isolation" in own[1]
    cluster = install_mpi.commands(["pip", "install"], cluster=True)
    assert cluster[0][-2:] == ["--no-binary", "mpi4py"] and not any("mpich" in word for word in cluster[0])
