"""The built wheel, installed where there is no checkout: it trains, reports, sweeps and exports."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import jaxrl_hpc

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.full
# what a build needs; a copy, because building leaves folders behind
SOURCES = ("jaxrl_hpc", "configs", "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
TINY = ["run.total_env_steps=2000", "run.eval_episodes=4", "run.final_eval_episodes=8", "replay.min_size=200"]


def variables(**changes: str) -> dict[str, str]:
    """Ours, without the checkout."""
    hidden = ("PYTHONPATH", *(name for name in os.environ if name.startswith("PMI_")))
    return {name: value for name, value in os.environ.items() if name not in hidden} | changes


def run(command: list[str], cwd: Path, **changes: str) -> str:
    done = subprocess.run(command, cwd=cwd, env=variables(**changes), capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(folder: Path, **changes: str) -> Path:
    """A wheel of this checkout, without network."""
    source = folder / "source"
    source.mkdir(parents=True)
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    run([*pip, "-w", str(folder), str(source)], folder, **changes)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def commands(wheel, tmp_path_factory) -> Path:
    """The folder of the commands of a new environment with the wheel; it finds its dependencies in ours."""
    folder = tmp_path_factory.mktemp("environment")
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)], folder)
    python = folder / "bin" / "python"
    target = Path(
        run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], folder).strip()
    )
    # its own packages come first; a checkout that is installed in ours must not be found at all
    ours = sysconfig.get_path("purelib")
    (target / "dependencies.pth").write_text(f"{ours}\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index"]
    run([*pip, "--force-reinstall", str(wheel)], folder)
    return folder / "bin"


def test_the_wheel_fits_every_python_of_its_platform(wheel):
    version = re.escape(jaxrl_hpc.__version__)
    assert re.fullmatch(rf"jaxrl_hpc-{version}-py3-none-(linux|macosx)_\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    for path in (ROOT / "configs").rglob("*.*"):
        assert f"jaxrl_hpc/configs/{path.relative_to(ROOT / 'configs').as_posix()}" in held
    assert "jaxrl_hpc/py.typed" in held
    for source in (ROOT / "jaxrl_hpc").rglob("*.cc"):
        place = source.relative_to(ROOT)
        library = place.with_name(f"lib{place.stem}.so")
        assert {place.as_posix(), library.as_posix()} <= held
    assert f"jaxrl_hpc-{jaxrl_hpc.__version__}.dist-info/licenses/LICENSE" in held
    assert not any(name.startswith(("tests/", "docs/", "build/")) for name in held)


def test_auditwheel_finds_nothing_that_is_not_on_every_linux(wheel):
    folders = (str(Path(sys.executable).parent), os.environ["PATH"])  # that of this interpreter first
    program = shutil.which("auditwheel", path=os.pathsep.join(folders))
    if program is None:
        pytest.skip("auditwheel is not installed")
    out = " ".join(run([program, "show", str(wheel)], wheel.parent).split())
    assert re.search(r'consistent with the following platform tag: "manylinux_\d+_\d+_\w+"', out), out


def test_an_empty_directory_is_enough(commands, tmp_path):
    program = str(commands / "jaxrl-hpc")
    where = run([str(commands / "python"), "-c", "import jaxrl_hpc; print(jaxrl_hpc.__file__)"], tmp_path)
    assert Path(where.strip()).is_relative_to(commands.parent)
    work = tmp_path / "work"
    work.mkdir()
    assert run([program, "--version"], work).strip() == f"jaxrl_hpc {jaxrl_hpc.__version__}"
    assert "workflows/cartpole_ppo_sharded" in run([program, "list", "configs"], work)
    out = run([program, "train", "cartpole_dqn", *TINY], work)
    assert out.startswith("run directory runs/cartpole_dqn\n") and "dqn on CartPole-v1: return" in out
    run([program, "report", "runs/cartpole_dqn"], work)
    assert "CartPole-v1" in (work / "runs" / "cartpole_dqn" / "report.html").read_text()
    run([program, "export", "runs/cartpole_dqn", "--out", "policy"], work)
    act = "from policy import load; import numpy; print(load('policy').act(numpy.zeros(4, 'f'), None)[0])"
    acted = run([str(commands / "python"), "-c", act], work, PYTHONPATH=str(work / "policy"))
    assert acted.strip() in ("0", "1")
    spec = {"base": "cartpole_dqn", "name": "tiny", "budget": 2000, "axes": {"agent.gamma": [0.9, 0.99]}}
    spec["overrides"] = {"run.eval_episodes": 4, "run.final_eval_episodes": 8, "replay.min_size": 200}
    (work / "tiny.yaml").write_text(json.dumps(spec))
    run([program, "sweep", "run", "tiny.yaml"], work)
    assert "2 trials" in run([program, "sweep", "collect", "tiny.yaml"], work)
    runs = json.loads(run([program, "runs", "--json"], work))
    assert [entry["state"] for entry in runs if entry["path"] == "runs/cartpole_dqn"] == ["finished"]


def test_without_a_compiler_the_wheel_still_builds(tmp_path):
    wheel = build(tmp_path, CXX="/nonexistent/c++", CC="/nonexistent/cc")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]


@pytest.mark.slow
def test_mpi_is_installed_from_the_wheel_in_an_empty_environment(wheel, tmp_path):
    """Needs a package index: everything is downloaded, and mpi4jax is built."""
    run([sys.executable, "-m", "venv", str(tmp_path / "env")], tmp_path)
    commands = tmp_path / "env" / "bin"
    clean = {"PATH": "/usr/local/bin:/usr/bin:/bin", "JAXRL_HPC_CACHE": str(tmp_path / "cache")}
    run([str(commands / "python"), "-m", "pip", "install", "-q", str(wheel)], tmp_path, **clean)
    out = run([str(commands / "jaxrl-hpc"), "doctor", "--install-mpi"], tmp_path, **clean)
    assert "Everything required works" in out and "allreduce inside jit" in " ".join(out.split())
    train = [
        str(commands / "jaxrl-hpc"),
        "train",
        "workflows/cartpole_ppo_sharded",
        "run.total_env_steps=4000",
    ]
    assert "ppo on CartPole-v1: return" in run(
        [str(commands / "mpiexec"), "-n", "2", *train], tmp_path, **clean
    )
