"""Parts with plain arguments: they are those of configs, they fit each other or say why not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_hpc as rl
from jaxrl_hpc import config as configs
from jaxrl_hpc.config.registry import AGENTS
from jaxrl_hpc.runtime.build import build, hypers_of
from jaxrl_hpc.schema import traced_values
from tests.tiers import quick

CONTINUOUS = ("ddpg", "iql", "mbpo", "mbpo_td3", "sac", "td3")


@pytest.fixture(scope="module")
def cartpole():
    return rl.envs.make("CartPole-v1")


@pytest.fixture(scope="module")
def pendulum():
    return rl.envs.make("Pendulum-v1")


def equal(one, other) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(_plain(a), _plain(b)) for a, b in pairs)


def _plain(leaf):
    return np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)


SMALL = {"network": {"hidden": (16,)}}


@pytest.mark.parametrize("name", quick(list(AGENTS), ["ppo"]))
def test_every_agent_learns_in_the_fused_workflow(name, cartpole, pendulum):
    env = pendulum if name in CONTINUOUS else cartpole
    agent = getattr(rl.agents, name)(env.spec, **SMALL)
    assert isinstance(agent, rl.Agent)
    flow = rl.workflows.fused(env, agent, num_envs=4)
    state = flow.init(jax.random.key(0))
    before = flow.learner(state).params
    state, metrics = jax.jit(flow.step)(state, 3)
    assert np.isfinite([float(value) for value in metrics.values() if value is not metrics]).any()
    assert not equal(before, flow.learner(state).params)


def test_the_parts_compute_what_a_config_computes(cartpole):
    """Bit for bit, the filling of the replay included."""
    config = configs.from_dict(
        {
            "agent": {
                "name": "dqn",
                "n_step": 3,
                "batch_size": 16,
                "network": {"hidden": [16]},
                "gamma": 0.9,
            },
            "env": {"name": "CartPole-v1"},
            "replay": {"name": "prioritised", "capacity": 2048, "min_size": 64, "alpha": 0.5},
            "workflow": {"name": "fused", "num_envs": 4},
            "run": {"total_env_steps": 5000},
        }
    )
    whole, key = build(config).workflow, jax.random.key(3)
    numbers = jax.tree.map(jnp.float32, hypers_of(config))
    expected = jax.jit(lambda key: whole.warmup(whole.init(key, numbers)))(key)
    expected, _ = jax.jit(whole.step)(expected, 50)

    agent = rl.agents.dqn(cartpole.spec, n_step=3, batch_size=16, gamma=0.9, **{"network.hidden": [16]})
    example = rl.replay.example_of(cartpole, agent)
    memory = rl.replay.prioritised(example, capacity=2048, batch_size=16, window=3, min_size=64, alpha=0.5)
    flow = rl.workflows.fused(cartpole, agent, memory, num_envs=4, total_env_steps=5000)
    state, _ = jax.jit(flow.step)(flow.init(key), 50)
    assert equal(expected, state)


def test_numbers_come_from_the_settings_unless_given(cartpole):
    agent = rl.agents.dqn(cartpole.spec, gamma=0.9, **SMALL)
    key = jax.random.key(0)
    assert agent.init(key).hypers["gamma"] == np.float32(0.9)
    changed = agent.init(key, {"gamma": 0.5}).hypers
    assert changed["gamma"] == 0.5 and {*changed} == {*traced_values(agent.origin.config)}
    rates = jnp.array([1e-3, 1e-2])
    flow = rl.workflows.fused(cartpole, agent, num_envs=2)
    many = jax.vmap(lambda rate: flow.init(key, {"agent": {"learning_rate": rate}}))(rates)
    assert np.array_equal(flow.learner(many).hypers["learning_rate"], rates)
    with pytest.raises(rl.UserError, match="'gama' is not a traced setting; did you mean gamma"):
        agent.init(key, {"gama": 0.5})


def test_own_functions_in_the_place_of_an_agents(cartpole):
    """`_replace` keeps what the checks and the numbers need."""
    agent = rl.agents.dqn(cartpole.spec, **SMALL)
    still = agent._replace(gradient=lambda *args: jax.tree.map(jnp.zeros_like, agent.gradient(*args)))
    flow = rl.workflows.fused(cartpole, still, num_envs=2)
    state = flow.init(jax.random.key(0))
    after, _ = jax.jit(flow.step)(state, 5)
    assert equal(flow.learner(state).params, flow.learner(after).params)
    bare = agent._replace(origin=None)
    with pytest.raises(rl.UserError, match="so give its numbers"):
        rl.workflows.fused(cartpole, bare, rl.replay.uniform({"x": 0.0}), num_envs=2).init(jax.random.key(0))


def misfits(env, other):
    agent = rl.agents.dqn(env.spec, n_step=3)
    memory = rl.replay.uniform(rl.replay.example_of(env, agent), window=3)
    return {
        "agent.n_steps: unknown key; did you mean n_step": lambda: rl.agents.dqn(env.spec, n_steps=3),
        "agent.n_step: should be greater": lambda: rl.agents.dqn(env.spec, n_step=0),
        "'dqn' needs discrete actions": lambda: rl.agents.dqn(other.spec),
        "there is no agent 'dqm'; did you mean dqn": lambda: rl.agents.make("dqm", env.spec),
        "there is no env 'CartPol-v1'; did you mean": lambda: rl.envs.make("CartPol-v1"),
        "window=1, but dqn learns from window=3": lambda: fit(env, agent, rl.replay.uniform({"x": 0.0})),
        "batch_size=7, but dqn learns from batch_size=128": lambda: fit(
            env, agent, rl.replay.uniform({"x": 0.0}, window=3, batch_size=7)
        ),
        "its example has nothing as obs": lambda: fit(env, agent, rl.replay.uniform({"x": 0.0}, window=3)),
        r"was made for CartPole-v1 \(obs_shape \(4,\)\), but Pendulum": lambda: fit(other, agent, None),
        "ppo learns from its own unrolls": lambda: fit(env, rl.agents.ppo(env.spec), memory),
        "workflow.num_env: unknown key": lambda: rl.workflows.fused(env, agent, memory, num_env=3),
        "leaves nothing to learn from": lambda: rl.workflows.fused(env, agent, memory, total_env_steps=100),
        "differently in each of 8 copies, but here are 4": lambda: rl.workflows.fused(
            env, rl.agents.dqn(env.spec, exploration="ladder"), num_envs=4
        ),
    }


def fit(env, agent, memory):
    return rl.workflows.fused(env, agent, memory)


def test_what_does_not_fit_is_one_sentence(cartpole, pendulum):
    for words, attempt in misfits(cartpole, pendulum).items():
        with pytest.raises(rl.UserError, match=words) as error:
            attempt()
        assert "\n" not in str(error.value)


def test_modules_and_names_of_a_package_can_be_reached():
    assert rl.workflows.update.learn_from_replay and rl.agents.normalise.wrap and rl.envs.render.CLASSIC
    assert "CartPole-v1" in rl.envs.names() and callable(rl.networks.make_torso) and rl.ops.statistics.score
    with pytest.raises(AttributeError, match="no attribute 'ppo2'; did you mean ppo"):
        rl.agents.ppo2  # noqa: B018
