"""Environments by a dotted path: found from the working directory, and mistakes are one sentence."""

import textwrap

import jax
import pytest

from jaxrl_hpc import config as configs
from jaxrl_hpc.config.registry import find
from jaxrl_hpc.errors import UserError
from tests import small

GOOD = """
import jax, jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces

@struct.dataclass
class State:
    time: jax.Array

@struct.dataclass
class Params:
    max_steps_in_episode: int = 5

class Walk(environment.Environment):
    def __init__(self, goal: float = 1.0):
        super().__init__()
        self.goal = goal
    @property
    def default_params(self):
        return Params()
    def reset_env(self, key, params):
        return jnp.zeros(2), State(jnp.int32(0))
    def step_env(self, key, state, action, params):
        state = State(state.time + 1)
        return jnp.ones(2), state, self.goal * action, jnp.zeros((), bool), {}
    def is_truncated(self, state, params):
        return state.time >= params.max_steps_in_episode
    def action_space(self, params=None):
        return spaces.Discrete(2)
    def observation_space(self, params=None):
        return spaces.Box(0, 1, (2,))

class Ragged(Walk):
    def step_env(self, key, state, action, params):
        obs, *rest = super().step_env(key, state, action, params)
        return (obs.astype(jnp.bfloat16), *rest)

class Raises(Walk):
    def step_env(self, key, state, action, params):
        return jnp.dot(jnp.ones(2), jnp.ones(3))

class Other:
    pass
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A module of its own name per test: imports are remembered."""
    name = f"walk_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(GOOD))
    (tmp_path / f"{name}_bad.py").write_text("import not_there_at_all\n")
    monkeypatch.chdir(tmp_path)
    return name


def make(name, **settings):
    config = small.config(env={"name": name, **settings})
    return find("env", config.env.name).make(config.env)


def test_found_in_the_working_directory_with_settings(folder):
    env = make(f"{folder}:Walk", kwargs={"goal": 2.5}, params={"max_steps_in_episode": 3})
    assert env.spec.max_episode_steps == 3 and env.spec.num_actions == 2 and not env.external
    keys = jax.random.split(jax.random.key(0), 4)
    state, _ = env.reset(keys)
    for _ in range(3):
        state, step = env.step(keys, state, jax.numpy.ones(4, "int32"))
    assert step.truncated.all() and (step.reward == 2.5).all()


@pytest.mark.parametrize(
    ("cls", "settings", "text"),
    [
        ("Wolk", {}, r"has no 'Wolk'; did you mean walk_\w+:Walk\?"),
        ("Other", {}, "is not a class derived from gymnax"),
        ("Walk", {"kwargs": {"gaol": 1}}, r"Walk\(\*\*env.kwargs\) raised TypeError"),
        ("Walk", {"params": {"max_step": 1}}, "has no such parameter; it has max_steps_in_episode"),
        (
            "Walk",
            {"params": {"max_steps_in_episode": 2.5}},
            "max_steps_in_episode: 2.5 is not a whole number",
        ),
        ("Walk", {"max_episode_steps": 5}, "env.max_episode_steps: .* set env.params.max_steps_in_episode"),
        ("Ragged", {}, "(step raised TypeError|observations of reset and of step differ)"),
        ("Raises", {}, "step raised TypeError: dot_general"),
    ],
)
def test_mistakes_are_one_sentence(folder, cls, settings, text):
    with pytest.raises(UserError, match=text) as caught:
        make(f"{folder}:{cls}", **settings)
    assert len(str(caught.value).splitlines()) == 1


def test_modules_that_are_not_there(folder):
    with pytest.raises(
        UserError, match=r"there is no module 'not_a_module'; a file not_a_module\.py is looked"
    ):
        make("not_a_module:Thing")
    with pytest.raises(UserError, match="needs module 'not_there_at_all', which is missing"):
        make(f"{folder}_bad:Thing")


def test_the_schema_knows_dotted_paths():
    names = configs.json_schema()["properties"]["env"]["allOf"][0]["properties"]["name"]["anyOf"]
    assert names[1]["pattern"] == r"^[\w.]+:\w+$"
    with pytest.raises(UserError, match=r"env.name: .*my-module:Thing"):
        small.config(env={"name": "my-module:Thing"})
