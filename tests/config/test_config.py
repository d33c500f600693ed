"""Configs: what is refused, and how it is said."""

import json

import jsonschema
import pytest
import yaml

from jaxrl_hpc import config as configs
from jaxrl_hpc.config.registry import AGENTS
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.schema import flatten
from tests import small


def refused(**sections):
    with pytest.raises(UserError) as caught:
        small.config(**sections)
    return str(caught.value)


def test_unknown_key_names_the_nearest():
    assert (
        refused(agent={"learning_rte": 1e-3})
        == "agent.learning_rte: unknown key; did you mean learning_rate?"
    )


def test_unknown_key_in_a_nested_section():
    assert "agent.network.hiden: unknown key; did you mean hidden?" in refused(
        agent={"network": {"hiden": [3]}}
    )


def test_unknown_component_and_section():
    assert "did you mean CartPole-v1?" in refused(env={"name": "cartpole"})
    with pytest.raises(UserError, match=r"agnt: there is no such section; did you mean agent\?"):
        configs.from_dict(small.data() | {"agnt": {}})


@pytest.mark.parametrize(
    ("section", "key", "value", "words"),
    [
        ("agent", "gamma", 1.5, ["agent.gamma", "less than or equal to 1", "1.5"]),
        ("agent", "batch_size", "many", ["agent.batch_size", "integer", "'many'"]),
        ("agent", "batch_size", 3.5, ["agent.batch_size", "integer", "3.5"]),
        ("agent", "double", "yes please", ["agent.double", "boolean", "yes please"]),
        ("run", "total_env_steps", 0, ["run.total_env_steps", "greater than or equal to 1", "0"]),
        ("run", "name", "a/b", ["run.name", "a/b"]),
        ("agent", "learning_rate", float("nan"), ["agent.learning_rate", "finite"]),
    ],
)
def test_wrong_values_name_field_value_and_range(section, key, value, words):
    message = refused(**{section: {key: value}})
    assert len(message.splitlines()) == 1
    assert all(word in message for word in words), message


def test_every_problem_is_reported_at_once():
    assert len(refused(agent={"gamma": 2.0, "batch_size": 0}).splitlines()) == 2


def test_missing_sections():
    with pytest.raises(UserError, match="agent: this section is missing") as caught:
        configs.from_dict({})
    assert "env: this section is missing" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("5e-4", 5e-4), ("1E3", 1e3), ("-2.5e+3", -2500.0), ("1_000", 1000), ("7", 7), (".5", 0.5), ("1.", 1.0),
     ("true", True), ("word", "word"), ("1e", "1e"), ("[1, 2]", [1, 2])],
)  # fmt: skip
def test_numbers_as_people_write_them(text, value):
    parsed = configs.parse_yaml(text, "test")
    assert parsed == value and type(parsed) is type(value)


def test_file_with_overrides_and_round_trip(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(small.data()))
    loaded = configs.load(path, ["agent.learning_rate=5e-4", "agent.network.hidden=[8, 8]", "run.seeds=3"])
    assert loaded.agent.learning_rate == 5e-4
    assert loaded.agent.network.hidden == (8, 8)
    assert loaded.run.seeds == 3
    again = configs.from_dict(json.loads(json.dumps(loaded.to_dict())))
    assert again.to_dict() == loaded.to_dict()


def test_a_run_is_named_after_its_file(tmp_path):
    data = small.data()
    del data["run"]["name"]
    (tmp_path / "quick.yaml").write_text(yaml.safe_dump(data))
    assert configs.load(tmp_path / "quick.yaml").run.name == "quick"


@pytest.mark.parametrize("text", ["gamma", "=3", "agent=3", "agnt.gamma=3", "agent.gamma.x=3", "agent..x=3"])
def test_bad_overrides(text):
    with pytest.raises(UserError):
        configs.apply_override(small.data() | {"agent": {"gamma": 0.9}}, text)


def test_missing_file_and_bad_yaml(tmp_path):
    with pytest.raises(UserError, match=r"did you mean cartpole_dqn\?"):
        configs.find_file("cartpol_dqn")
    bad = tmp_path / "bad.yaml"
    bad.write_text("agent: [1,\n")
    with pytest.raises(UserError, match=r"bad\.yaml line \d+: not valid YAML"):
        configs.load(bad)
    bad.write_text("- 1\n")
    with pytest.raises(UserError, match="a config holds sections"):
        configs.load(bad)


def test_configs_are_frozen():
    config = small.config()
    with pytest.raises(Exception, match="frozen"):
        config.agent.gamma = 0.5


def test_schema_accepts_what_we_accept_and_refuses_unknown_keys():
    schema = configs.json_schema()
    jsonschema.validate(small.config().to_dict(), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(small.data(agent={"learning_rte": 1.0}), schema)


@pytest.mark.parametrize(
    ("agent", "workflow", "steps", "replay"),
    [
        ("ppo", "fused", 128, None),
        ("ppo", "async", 128, None),
        ("a2c", "parameter_server", 16, None),
        ("dqn", "fused", 1, "uniform"),
        ("td3", "async", 16, "uniform"),
        ("dyna_q", "dyna", 1, "uniform"),
        ("recurrent_dqn", "sharded", 1, "sequence"),
    ],
)
def test_what_is_left_open_suits_the_agent_and_is_saved(agent, workflow, steps, replay):
    data = {"agent": {"name": agent}, "env": {"name": "CartPole-v1"}, "workflow": {"name": workflow}}
    saved = configs.from_dict(data).to_dict()
    assert saved["workflow"]["unroll_length"] == steps
    assert (saved["replay"]["name"] if "replay" in saved else None) == replay
    assert configs.from_dict(saved).to_dict() == saved
    given = configs.from_dict(data | {"workflow": {"name": workflow, "unroll_length": 5}})
    assert given.to_dict()["workflow"]["unroll_length"] == 5


def test_vtrace_bars_are_in_order():
    assert "c_bar is 2: V-trace needs it to be no larger than rho_bar = 1" in refused(
        agent={"name": "a2c", "c_bar": 2.0}
    )
    configs.from_dict(
        {"agent": {"name": "a2c", "c_bar": 2.0, "vtrace": False}, "env": {"name": "CartPole-v1"}}
    )


def test_flatten():
    assert flatten({"a": {"b": 1, "c": {"d": [2]}}, "e": None}) == {"a.b": 1, "a.c.d": [2], "e": None}


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_tells_the_widths_of_its_layers(name):
    """Threads and memory are estimated from them."""
    fields = AGENTS[name].config.model_fields
    lstm = {"lstm": 48} if "lstm" in fields else {}
    agent = AGENTS[name].config(network={"hidden": (300, 20)}, **lstm)
    assert agent.hidden_widths == (300, 20) and agent.recurrent_width == lstm.get("lstm", 0)
