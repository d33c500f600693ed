"""The examples that CONTRIBUTING shows are complete: they run, and what they train learns."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from jaxrl_hpc import config as configs
from jaxrl_hpc import registry
from jaxrl_hpc.build import build
from jaxrl_hpc.train import train

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _registry_as_before():
    saved = [(known, dict(known)) for known in registry.SECTIONS.values()]
    yield
    for known, before in saved:
        known.clear()
        known.update(before)


def load(path: Path):
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where pydantic and dataclasses look for types
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("name", "at_least"), [("agent", 100.0), ("environment", 0.9), ("workflow", 100.0)])
def test_example_runs_and_learns(name, at_least, tmp_path):
    """A random policy gets about 22 on CartPole and 0 in the corridor."""
    summary = load(ROOT / "docs" / "examples" / f"{name}.py").main(str(tmp_path / "run"))
    assert summary["eval_return_iqm"] > at_least


def test_a_gymnax_environment_by_its_dotted_path(monkeypatch):
    """What environment.py trains by registering itself, corridor.yaml trains without."""
    monkeypatch.chdir(ROOT / "docs" / "examples")
    parts = build(configs.load("corridor.yaml"))
    assert parts.env.spec.obs_shape == (2,) and parts.env.spec.max_episode_steps == 50
    assert not parts.env.external


def test_a_gymnasium_environment_by_its_dotted_path_learns(monkeypatch, tmp_path):
    """A heater at half power is 5 degrees off on average, over 96 steps about -480."""
    monkeypatch.chdir(ROOT / "docs" / "examples")
    config = configs.load("thermostat.yaml", ["run.total_env_steps=30_720"])
    summary = train(config, tmp_path / "run", say=lambda _: None).summary
    assert summary["env"] == "thermostat:Thermostat" and summary["eval_return_iqm"] > -200


def test_contributing_names_every_example_and_no_other_file():
    targets = re.findall(r"\]\(([^)]+)\)", (ROOT / "CONTRIBUTING.md").read_text())
    assert not [target for target in targets if not (ROOT / target).exists()]
    assert {p.name for p in (ROOT / "docs/examples").rglob("*.py")} == {
        Path(target).name for target in targets if "examples" in target
    }
