"""Agents with plain arguments.

    agent = rl.agents.dqn(env.spec, n_step=3, learning_rate=1e-3)
    learner = agent.init(jax.random.key(0))

Every setting of docs/agents.md is a keyword argument; `help(rl.agents.dqn)` lists them and
`rl.agents.dqn.Config` is their class. `rl.agents.make("module:make", spec)` makes an agent of your own.
"""

from __future__ import annotations

from typing import Any

from jaxrl_hpc.api.parts import AgentOrigin, attribute_of, documented, settings_of, with_numbers
from jaxrl_hpc.config.registry import AGENTS
from jaxrl_hpc.types import Agent, EnvSpec

__all__ = ["make", *AGENTS]


def make(name: str, spec: EnvSpec, *, num_envs: int = 8, **settings: Any) -> Agent:
    """An agent by its name in configs, `module:make` included.

    Args:
      name: such as "dqn"; `jaxrl-hpc list agents` shows all.
      spec: of the environment, `env.spec`.
      num_envs: environment copies of all processes, for agents that explore differently in each.
      settings: as in a config; nested ones as mappings or by dotted names.

    Returns:
      the agent. `init(key)` uses the settings' numbers, `init(key, {"gamma": 0.9})` others.
    """
    component, config = settings_of("agent", name, settings)
    agent = component.make(config, spec, num_envs=num_envs)
    return with_numbers(agent, AgentOrigin(config, spec, num_envs))


@documented("agent", "agents")
def a2c(spec: EnvSpec, *, num_envs: int = 8, **settings: Any) -> Agent:
    """Advantage actor-critic with V-trace; discrete and continuous actions."""
    return make("a2c", spec, num_envs=num_envs, **settings)


@documented("agent", "agents")
def ddpg(spec: EnvSpec, *, num_envs: int = 8, **settings: Any) -> Agent:
    """Deep deterministic policy gradient; continuous actions."""
    return make("ddpg", spec, num_envs=num_envs, **settings)


@documented("agent", "agents")
def dqn(spec: EnvSpec, *, num_envs: int = 8, **settings: Any) -> Agent:
    """DQN with double, dueling, n-step and prioritised variants; discrete actions."""
    return make("dqn", spec, num_envs=num_envs, **settings)


@documented("agent", "agents")
def dyna_q(spec: EnvSpec, *, num_envs: int = 8, **settings: Any) -> Agent:
    """DQN that also learns from a model of the environment; discrete actions."""
    return make("dyna_q", spec, num_envs=num_envs, **settings)


@documented("agent", "agents")
def iql(spec: EnvSpec, *, num_envs: int = 8, **settings: Any) -> Agent:
    """Implicit Q-learning, from recorded transitions; continuous actions."""
    return make("iql", spec, num_envs=num_envs, **settings)


@documented("agent", "agents")
def mbpo(spec: EnvSpec, *, num_envs: int = 8, **settings: Any) -> Agent:
    """SAC that also learns from rollouts in a learned ensemble; continuous actions."""
    return make("mbpo", spec, num_envs=num_envs, **settings)


@documented("agent", "agents")
def mbpo_td3(spec: EnvSpec, *, num_envs: int = 8, **settings: Any) -> Agent:
    """TD3 that also learns from rollouts in a learned ensemble; continuous actions."""
    return make("mbpo_td3", spec, num_envs=num_envs, **settings)


@documented("agent", "agents")
def ppo(spec: EnvSpec, *, num_envs: int = 8, **settings: Any) -> Agent:
    """Proximal policy optimisation; discrete and continuous actions."""
    return make("ppo", spec, num_envs=num_envs, **settings)


@documented("agent", "agents")
def pqn(spec: EnvSpec, *, num_envs: int = 8, **settings: Any) -> Agent:
    """Q-learning from unrolls, without replay and target network; discrete actions."""
    return make("pqn", spec, num_envs=num_envs, **settings)


@documented("agent", "agents")
def recurrent_dqn(spec: EnvSpec, *, num_envs: int = 8, **settings: Any) -> Agent:
    """DQN with an LSTM, learned from stored sequences (R2D2); discrete actions."""
    return make("recurrent_dqn", spec, num_envs=num_envs, **settings)


@documented("agent", "agents")
def sac(spec: EnvSpec, *, num_envs: int = 8, **settings: Any) -> Agent:
    """Soft actor-critic, with options that make REDQ, DroQ and CrossQ; continuous actions."""
    return make("sac", spec, num_envs=num_envs, **settings)


@documented("agent", "agents")
def td3(spec: EnvSpec, *, num_envs: int = 8, **settings: Any) -> Agent:
    """Twin delayed DDPG; continuous actions."""
    return make("td3", spec, num_envs=num_envs, **settings)


def __getattr__(name: str) -> Any:
    return attribute_of(__name__, "agent", "agents", make, name)
