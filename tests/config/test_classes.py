"""Settings without programs: the classes that are taken out of the sources validate as the real ones do."""

import json
import subprocess
import sys

import pytest

from jaxrl_hpc.config.registry import SECTIONS, USER_ENV

CODE = """
import json, sys
from jaxrl_hpc.config.registry import SECTIONS, USER_ENV
made = {section: {name: known.config(name).model_json_schema() for name in known}
        for section, known in (SECTIONS | {"own": USER_ENV}).items()}
loaded = sorted({"jax", "numpy", "flax", "gymnax", "pyarrow", "matplotlib"} & set(sys.modules))
print(json.dumps([made, loaded]))
"""


def test_they_are_the_same_and_need_no_jax():
    """Schemas hold every field with its type, bounds, default and meaning."""

    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    made, loaded = json.loads(done.stdout)
    assert loaded == []
    for section, known in (SECTIONS | {"own": USER_ENV}).items():
        for name, component in known.items():
            real = json.loads(json.dumps(component.config.model_json_schema()))
            assert made[section][name] == real, (section, name)
            assert component.config is known.config(name), "once it is loaded the real one is taken"


LIGHT = """
import sys
from jaxrl_hpc.cli.main import main
code = main(sys.argv[1:])
assert "jax" not in sys.modules, "JAX was imported"
sys.exit(code)
"""

QUESTIONS = {
    "show": (["show", "cartpole_dqn", "agent.n_step=3"], 0, "n_step"),
    "show what is filled in": (["show", "cartpole_dqn"], 0, "+ unroll"),
    "unknown key": (["train", "cartpole_dqn", "agent.gama=1"], 2, "did you mean gamma?"),
    "out of bounds": (["train", "cartpole_dqn", "agent.network.hidden=[1000000000000]"], 2, "1000000"),
    "fields together": (["train", "workflows/cartpole_ppo_sharded", "workflow.devices=5"], 2, "equal parts"),
    "a name": (["train", "cartpole_dqn", "run.name=.."], 2, "run.name"),
    "no such config": (["train", "nothing_of_the_kind"], 2, "no config file"),
    "seeds that do not fit": (
        ["train", "cartpole_dqn", "replay.capacity=2147483647", "run.seeds=100000"],
        2,
        "= 100,000: this takes at least",
    ),
    "layers that do not fit": (
        ["train", "cartpole_dqn", "agent.network.hidden=[1000000, 1000000]"],
        2,
        "GiB",
    ),
    "a sweep": (["sweep", "plan", "cartpole_dqn", "agent.gama=1"], 2, "did you mean gamma?"),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_answers_without_jax(question, tmp_path):
    words, code, text = QUESTIONS[question]
    command = [sys.executable, "-c", LIGHT, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == code and text in done.stdout + done.stderr, done.stdout + done.stderr
