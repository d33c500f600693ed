"""Settings of outside environments that cannot be: one sentence that names the field, no traceback."""

import sys
import types

import gymnasium
import pytest
from gymnasium import spaces

from jaxrl_hpc.envs import jumanji, user_env
from jaxrl_hpc.envs.external import gymnasium_env, mpi_program
from jaxrl_hpc.errors import UserError


class Spaceless(gymnasium.Env):
    action_space = spaces.Discrete(2)


class Leaves(gymnasium.Env):
    def __init__(self):
        sys.exit("no licence")


class Untidy:
    """As a parallel program: the number of actions is missing."""

    observation_shape, actions, max_episode_steps = 3, "many", 5


if "Leaves-v0" not in gymnasium.registry:  # imported once by pytest, once by the dotted path
    gymnasium.register("Leaves-v0", entry_point=Leaves)


@pytest.fixture
def broken_module(tmp_path, monkeypatch):
    (tmp_path / "not_python.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)


HERE = "tests.envs.test_external_settings"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"id": "FrozenLake-v1", "kwargs": {"map_name": "9x9"}},
            "env.kwargs: 'FrozenLake-v1' cannot be made with them: KeyError: '9x9'",
        ),
        (
            {"id": "CartPole-v1", "kwargs": {"gravity": 3}, "copies": "vector"},
            "env.kwargs: 'CartPole-v1' cannot be made with them: .*unexpected keyword argument 'gravity'",
        ),
        ({"id": "not_python:A-v0"}, r"names a module that cannot be imported \(SyntaxError: .*line 1\)"),
        ({"id": "Leaves-v0"}, "env.id: .Leaves-v0' cannot be made: SystemExit: no licence"),
        ({"id": "ALE/Breakout-v5"}, "no Gymnasium environment .*; did you mean ale_py:ALE/Breakout-v5"),
    ],
)
def test_gymnasium(broken_module, settings, text):
    # importing ale_py anywhere in this process would register its games
    gymnasium.registry.pop("ALE/Breakout-v5", None)
    with pytest.raises(UserError, match=text) as caught:
        gymnasium_env.make(gymnasium_env.Config(**settings))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "settings", "text"),
    [
        ("not_python:A", {}, "env.name: importing not_python raised SyntaxError"),
        (f"{HERE}:Spaceless", {}, "env.name: .*Spaceless needs observation_space, a space of gymnasium"),
        (f"{HERE}:Leaves", {}, r"Leaves\(\*\*env.kwargs\) raised SystemExit: no licence"),
        ("tests.envs.broken:Broken", {"params": {"how": "nan"}}, "env.params: .* is a Gymnasium environment"),
    ],
)
def test_classes_by_a_dotted_path(broken_module, name, settings, text):
    with pytest.raises(UserError, match=text):
        user_env.make(user_env.Config(name=name, **settings))


@pytest.mark.parametrize(
    ("program", "text"), [("not_python:A", "SyntaxError"), (f"{HERE}:Untidy", "TypeError")]
)
def test_parallel_programs(broken_module, program, text):
    with pytest.raises(UserError, match=rf"env.program: {program} must name a class with .* \({text}: "):
        mpi_program.make(mpi_program.Config(program=program))


def test_jumanji(monkeypatch):
    suite = types.ModuleType("jumanji")
    suite.registered_environments = lambda: ["Snake-v1"]
    suite.make = lambda id, **kwargs: {}[next(iter(kwargs))]
    monkeypatch.setitem(sys.modules, "jumanji", suite)
    with pytest.raises(UserError, match=r"env.kwargs: 'Snake-v1' cannot be made: KeyError: 'rows'"):
        jumanji.make(jumanji.Config(kwargs={"rows": 3}))
