"""Every file in configs/sweeps/ matches the schema, plans, and says what it is."""

import json
from pathlib import Path

import jsonschema
import pytest

from jaxrl_hpc import config as configs
from jaxrl_hpc.cli.main import main
from jaxrl_hpc.sweeps.plan import make_plan
from jaxrl_hpc.sweeps.spec import load_spec, sweep_schema

ROOT = Path(__file__).resolve().parents[2] / "configs" / "sweeps"
FILES = sorted(ROOT.glob("*.yaml"))


def test_there_are_sweeps(capsys):
    assert {"cartpole_dqn", "exabooster_ppo"} <= {path.stem for path in FILES}
    assert main(["list", "sweeps"]) == 0
    out = capsys.readouterr().out
    assert all(path.stem in out for path in FILES)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_plans(path):
    text = path.read_text()
    jsonschema.validate(configs.parse_yaml(text, str(path)), sweep_schema())
    plan = make_plan(load_spec(path.stem))
    assert plan.trials and len({trial.id for trial in plan.trials}) == len(plan.trials)
    assert [line for line in text.splitlines() if line.startswith("# ") and "language-server" not in line]


def test_schema_file_is_current():
    current = json.loads((ROOT / "schema.json").read_text())
    assert current == sweep_schema(), "run: jaxrl-hpc schema --sweeps > configs/sweeps/schema.json"
