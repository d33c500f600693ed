"""A plug-in package in one module: an agent and an environment that configs name once it is installed.

    pip install .
    jaxrl-hpc train bandit.yaml

pyproject.toml gives the names by entry points. The agent is the gradient bandit (Sutton & Barto 2018, 2.8):
one preference per action, independent of the observation.

    pi(a) = exp h_a / sum_b exp h_b,   h += learning_rate * mean (r - mean r) grad log pi(a)
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.schema import AgentConfig, traced
from jaxrl_hpc.types import Agent, Array, Batch, EnvSpec, LearnerState, PyTree, Unrolls, UpdateInfo


class Config(AgentConfig):
    """What a config may set."""

    learning_rate: float = traced(0.5, "step size of the preferences", gt=0)


def make(config: Config, spec: EnvSpec, *, num_envs: int) -> Agent:
    if spec.num_actions is None:
        raise UserError(
            f"agent {config.name!r} needs discrete actions, but env {spec.name!r} has none: use ppo"
        )
    num_actions = spec.num_actions

    def init(key: Array, hypers: dict[str, Array]) -> LearnerState:
        preferences = jnp.zeros(num_actions)
        return LearnerState(preferences, (), (), hypers, (), jnp.int32(0), jnp.float32(0))

    def act(params: Array, carry: PyTree, obs: Array, key: Array, greedy: bool):
        copies = obs.shape[0]
        if greedy:
            return jnp.full(copies, jnp.argmax(params), jnp.int32), carry, ()
        return jax.vmap(jax.random.categorical, (0, None))(key, params).astype(jnp.int32), carry, ()

    def gradient(state: LearnerState, batch: Batch, key: Array) -> tuple[PyTree, UpdateInfo]:
        action, reward = batch.data.action, batch.data.reward  # [T, B]

        def loss(params: Array) -> Array:
            return -jnp.mean(jax.nn.log_softmax(params)[action] * (reward - reward.mean()))

        value, grads = jax.value_and_grad(loss)(state.params)
        return grads, UpdateInfo({"loss": value, "reward": reward.mean()}, jnp.zeros(0))

    def apply(state: LearnerState, grads: PyTree, statistics: PyTree = ()) -> LearnerState:
        params = state.params - state.hypers["learning_rate"] * grads
        return state._replace(params=params, step=state.step + 1)

    return Agent(
        needs=Unrolls(),
        init=init,
        actor=lambda state: state.params,
        carry=lambda env_ids: (),
        act=act,
        gradient=gradient,
        apply=apply,
        stochastic=True,
    )


@struct.dataclass
class State:
    time: jax.Array  # [] int32


@struct.dataclass
class Params:
    noise: float = 0.5
    max_steps_in_episode: int = 10


class Arms(environment.Environment):
    """Arms that pay 0, 1/n, 2/n, … on average: the last is the best."""

    def __init__(self, arms: int = 5) -> None:
        super().__init__()
        self.arms = arms

    @property
    def default_params(self) -> Params:
        return Params()

    def reset_env(self, key: jax.Array, params: Params) -> tuple[jax.Array, State]:
        return jnp.zeros(1), State(jnp.int32(0))

    def step_env(self, key: jax.Array, state: State, action: jax.Array, params: Params):
        reward = action / self.arms + params.noise * jax.random.normal(key)
        return jnp.zeros(1), State(state.time + 1), reward, jnp.bool_(False), {}

    def is_truncated(self, state: State, params: Params) -> jax.Array:
        return state.time >= params.max_steps_in_episode

    def action_space(self, params: Params | None = None) -> spaces.Discrete:
        return spaces.Discrete(self.arms)

    def observation_space(self, params: Params | None = None) -> spaces.Box:
        return spaces.Box(0.0, 1.0, (1,))
