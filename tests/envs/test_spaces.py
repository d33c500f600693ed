"""Observations of several parts, several choices per step and masks, from everywhere to exported policies."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc import rollout
from jaxrl_hpc.config.registry import find
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.export import export_run, loader
from jaxrl_hpc.runtime.build import build, hypers_of
from jaxrl_hpc.runtime.train import train
from jaxrl_hpc.types import Part
from tests import small
from tests.tiers import quick

HERE = "tests.envs.spaces_envs"
KEYS = jax.random.split(jax.random.key(0), 3)
ON_POLICY: dict[str, Any] = {
    "replay": None,
    "workflow": {"name": "fused", "num_envs": 16, "unroll_length": 8},
}
NETWORK = {"network": {"hidden": [16]}, "learning_rate": 1e-2}
AGENTS: dict[str, dict[str, Any]] = {
    "dqn": {"agent": {"name": "dqn", "batch_size": 32, "target_every": 50, **NETWORK}},
    "pqn": {"agent": {"name": "pqn", "minibatches": 2, **NETWORK}, **ON_POLICY},
    "ppo": {"agent": {"name": "ppo", "minibatches": 2, **NETWORK}, **ON_POLICY},
    "a2c": {"agent": {"name": "a2c", "normalise": {"observation": True}, **NETWORK}, **ON_POLICY},
}


def config_of(agent: str, env: dict[str, Any], steps: int) -> Any:
    parts = {**AGENTS[agent], "env": env, "run": {"name": "spaces", "total_env_steps": steps}}
    data = small.data(**{name: part for name, part in parts.items() if part is not None})
    if "replay" in AGENTS[agent]:
        del data["replay"]
    return small.configs.from_dict(data)


def make(env: str, **settings: Any) -> Any:
    config = small.config(env={"name": f"{HERE}:{env}", **settings})
    return find("env", config.env.name).make(config.env)


def test_a_dictionary_of_gymnax_becomes_a_vector_with_the_mask_last() -> None:
    env = make("Doors")
    assert env.spec.layout == (
        Part("clock", (5,), 0, one_hot=True),
        Part("sensors/noise", (2, 2), 5),
        Part("sensors/time", (), 9),
        Part("action_mask", (4,), 10),
    )
    assert env.spec.obs_shape == (14,) and env.spec.action_mask and env.spec.num_actions == 4
    state, obs = jax.jit(env.reset)(KEYS)
    assert (obs[:, :5] == jnp.eye(5)[0]).all() and (obs[:, 5:9] == 0.5).all()
    assert (obs[:, 10:].sum(axis=1) == 2).all()
    _, step = jax.jit(env.step)(KEYS, state, jnp.zeros(3, jnp.int32))
    assert (step.obs[:, :5] == jnp.eye(5)[1]).all() and (step.obs[:, 9] == 1).all()


def test_a_tuple_of_gymnax_and_several_choices() -> None:
    env = make("Levers")
    assert env.spec.layout == (Part("0", (4,), 0), Part("1", (5,), 4, one_hot=True))
    assert env.spec.action_sizes == (3, 2) and env.spec.num_actions is None and not env.spec.action_mask


@pytest.mark.parametrize("masked", ["part", "info"])
def test_gymnasium(masked: str) -> None:
    env = make("Outside", kwargs={"masked": masked}, mask_from_info=masked == "info")
    spec = env.spec
    assert [part.name for part in spec.layout] == ["numbers", "place", "action_mask"]
    assert spec.layout[1] == Part("place", (3,), 4, one_hot=True)
    assert spec.obs_shape == (12,) and spec.action_mask and spec.action_sizes == (3, 2)
    state, obs = env.reset(KEYS)
    np.testing.assert_allclose(obs[0], [0, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0, 1])
    _, step = env.step(KEYS, state, jnp.tile(jnp.array([2, 1]), (3, 1)))  # 3 and 1 in its own numbers
    np.testing.assert_allclose(step.reward, 3.0)
    np.testing.assert_allclose(step.obs[0], [0.1] * 4 + [0, 1, 0, 1, 0, 1, 0, 1], rtol=1e-6)
    env.host.simulators.close()


def test_taxi_has_its_mask_in_info() -> None:
    config = small.config(env={"name": "gymnasium", "id": "Taxi-v4", "mask_from_info": True})
    env = find("env", "gymnasium").make(config.env)
    assert [part.name for part in env.spec.layout] == ["observation", "action_mask"]
    assert env.spec.obs_shape == (506,) and env.spec.action_mask
    _, obs = env.reset(KEYS)
    assert (obs[:, :500].sum(axis=1) == 1).all() and ((obs[:, 500:] == 0) | (obs[:, 500:] == 1)).all()
    env.host.simulators.close()


@pytest.mark.parametrize("agent", quick(AGENTS, ["dqn"]))
def test_closed_doors_are_never_opened(agent: str) -> None:
    """Neither while exploring nor greedily; and with the mask the best open door is learned."""
    config = config_of(agent, {"name": f"{HERE}:Doors"}, 12_000)
    parts = build(config)
    flow = parts.workflow
    state = flow.init(jax.random.key(0), jax.tree.map(jnp.float32, hypers_of(config)))
    if flow.warmup_steps:
        state = jax.jit(flow.warmup)(state)
    actor = parts.agent.actor(flow.learner(state))
    copies = rollout.start(parts.env, parts.agent, jax.random.key(1), jnp.arange(64))
    _, steps, _ = jax.jit(lambda a, c: rollout.unroll(parts.env, parts.agent, a, c, 20))(actor, copies)
    assert np.asarray(steps.reward).min() >= 0 and set(np.unique(steps.action)) == {0, 1, 2, 3}
    iterations = (12_000 - flow.warmup_steps) // flow.steps_per_iteration
    state, metrics = jax.jit(flow.step)(state, jnp.int32(iterations))
    assert np.isfinite(metrics["loss"])
    actor = parts.agent.actor(flow.learner(state))
    found = jax.jit(lambda a: rollout.evaluate(parts.env, parts.agent, a, jax.random.key(2), 64).returns)(
        actor
    )
    assert np.mean(found) > 3.9  # of 4


@pytest.mark.parametrize("agent", quick(["ppo", "a2c"], ["ppo"]))
def test_several_choices_are_learned(agent: str) -> None:
    config = config_of(agent, {"name": f"{HERE}:Levers"}, 16_000)
    parts = build(config)
    flow = parts.workflow
    state = flow.init(jax.random.key(0), jax.tree.map(jnp.float32, hypers_of(config)))
    state, _ = jax.jit(flow.step)(state, jnp.int32(16_000 // flow.steps_per_iteration))
    actor = parts.agent.actor(flow.learner(state))
    found = jax.jit(lambda a: rollout.evaluate(parts.env, parts.agent, a, jax.random.key(2), 64).returns)(
        actor
    )
    assert np.mean(found) > 3.7  # of 4


@pytest.mark.full
def test_exported_policies_take_the_parts_and_obey_the_mask(tmp_path: Any) -> None:
    config = config_of("ppo", {"name": f"{HERE}:Outside"}, 512)
    data = config.to_dict()
    data["run"] |= {"final_eval_episodes": 2, "eval_every": 0}
    train(small.configs.from_dict(data), tmp_path / "run")
    metadata = export_run(tmp_path / "run", tmp_path / "policy", trust=True)
    assert metadata["action"] == {"multi_discrete": [3, 2], "shape": [2], "dtype": "int32"}
    policy = loader.load(tmp_path / "policy", sample=True)
    mask = np.array([0, 1, 0, 0, 1])
    obs = {"place": 2, "numbers": np.zeros((2, 2)), "action_mask": mask}
    action, _ = policy.act(obs)
    np.testing.assert_array_equal(action, [1, 1])
    vector = np.array([0, 0, 0, 0, 0, 0, 1, *mask], np.float32)
    np.testing.assert_array_equal(loader.as_vector(obs, metadata["observation"]["layout"]), vector)
    batch = {"place": np.arange(3), "numbers": np.zeros((3, 2, 2)), "action_mask": np.tile(mask, (3, 1))}
    actions, _ = policy.act(batch)
    np.testing.assert_array_equal(actions, [[1, 1]] * 3)
    with pytest.raises(ValueError, match="lacks the part numbers"):
        policy.act({"place": 2, "action_mask": mask})


def test_everything_else_is_one_sentence() -> None:
    with pytest.raises(UserError, match="observations of type Text at text; Box, Discrete"):
        make("Words")
    with pytest.raises(UserError, match=r"mask_from_info: .* is a gymnax environment"):
        make("Doors", mask_from_info=True)
    for agent, env, message in [
        ("dqn", "Levers", r"one choice per step; env .* has 2 \(MultiDiscrete\): use ppo or a2c"),
        ("dyna_q", "Doors", "'dyna_q' does not support action masks"),
        ("recurrent_dqn", "Doors", "'recurrent_dqn' does not support action masks"),
        ("td3", "Levers", "'td3' needs continuous actions; .* use ppo"),
    ]:
        spec = make(env).spec
        component = find("agent", agent)
        with pytest.raises(UserError, match=message):
            component.make(component.config(), spec, num_envs=2)
