"""`import jaxrl_hpc as rl`: cheap, complete, and the same in whatever order things are imported."""

import inspect
import subprocess
import sys

import pytest

import jaxrl_hpc as rl
from jaxrl_hpc.config.registry import AGENTS, REPLAYS, SECTIONS


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


HEAVY = "{'jax', 'numpy', 'pydantic', 'yaml', 'pyarrow', 'matplotlib', 'flax'} & {*sys.modules}"


def test_importing_the_package_imports_nothing_else():
    assert python(f"import sys, jaxrl_hpc as rl; dir(rl), rl.__all__; print({HEAVY})").strip() == "set()"


def test_every_name_is_there_and_listed():
    assert {*rl.__all__} <= {*dir(rl)} and len({*rl.__all__}) == len(rl.__all__)
    assert all(getattr(rl, name) is not None for name in rl.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        rl.nothing  # noqa: B018


def test_everything_public_is_documented():
    undocumented = [name for name in rl.__all__ if not inspect.getdoc(getattr(rl, name))]
    assert not undocumented
    for kind in (rl.Run, rl.Comparison, rl.Sweep, rl.Policy):
        members = [value for name, value in vars(kind).items() if not name.startswith("_")]
        assert all(inspect.getdoc(value) for value in members), kind


# what a user does, and what a library does that imports implementations by their module
USER = "import jaxrl_hpc as rl; found = rl.agents.dqn, rl.replay.uniform, rl.workflows.fused, rl.envs.make"
OTHER = (
    "import jaxrl_hpc.agents.dqn, jaxrl_hpc.replay.uniform, jaxrl_hpc.workflows.fused\n"
    "import jaxrl_hpc.envs.gymnax\n"
    "from jaxrl_hpc.agents import dqn as module; from jaxrl_hpc.agents.dqn import Config\n"
    "import jaxrl_hpc.agents.dqn as alias\n"
    "import jaxrl_hpc.config"
)
CHECK = """
import inspect, jaxrl_hpc as rl
assert inspect.isfunction(rl.agents.dqn) and rl.agents.dqn.__module__ == "jaxrl_hpc.api.agents"
assert all(map(inspect.isfunction, (rl.replay.uniform, rl.workflows.fused, rl.envs.make)))
assert inspect.ismodule(module) and module.Config is Config is alias.Config is rl.agents.dqn.Config
assert module.make is alias.make
print("same")
"""


@pytest.mark.parametrize("code", [f"{USER}\n{OTHER}", f"{OTHER}\n{USER}"], ids=["user first", "other first"])
def test_functions_and_modules_of_one_name_live_together(code):
    assert python(code + CHECK).strip() == "same"


def test_every_component_has_a_function():
    assert {*AGENTS} <= {*rl.agents.__all__} and {*REPLAYS} <= {*rl.replay.__all__}
    for namespace, section in ((rl.agents, "agent"), (rl.replay, "replay"), (rl.workflows, "workflow")):
        for name in {*namespace.__all__} & {*SECTIONS[section]}:
            function, fields = getattr(namespace, name), SECTIONS[section][name].config.model_fields
            assert {*fields} - {"name"} <= {*inspect.signature(function).parameters}
            assert all(field in function.__doc__ for field in fields if field not in ("name", "capacity"))


SNIPPET = """
import jaxrl_hpc as rl
env = rl.envs.make("CartPole-v1")
reveal_type(env)
reveal_type(rl.agents.dqn(env.spec, n_step=3))
reveal_type(rl.replay.uniform({}))
flow = rl.workflows.fused(env, rl.agents.ppo(env.spec))
reveal_type(flow)
flow.step(flow.init(None), 3)
memory = rl.replay.uniform({})
memory.sample(memory.add(memory.init(), {}), 0)
reveal_type(rl.train("x").summary)
reveal_type(rl.load("x"))
reveal_type(rl.ops.huber)
rl.nothing
"""


@pytest.mark.full
def test_a_type_checker_sees_the_names(tmp_path):
    (tmp_path / "snippet.py").write_text(SNIPPET)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--cache-dir",
        str(tmp_path / "cache"),
        str(tmp_path / "snippet.py"),
    ]
    text = subprocess.run(command, capture_output=True, text=True).stdout
    for kind in ("Env", "Agent", "Replay", "Run"):
        assert f"jaxrl_hpc.{'api.run' if kind == 'Run' else 'types'}.{kind}" in text, text
    assert "TraceableWorkflow" in text and "dict[str, Any]" in text and "nothing" in text, text
    assert text.count(": error:") == 1, text
