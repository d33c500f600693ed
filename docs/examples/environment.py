"""A complete environment in one file: a corridor with a treasure at one end and a trap at the other.

A sign at the start says on which side the treasure is. Environments are written for one copy, as gymnax 1.x
environments; `from_gymnax` makes a batch of them that reset themselves, with time limits apart from failures.

Run it: python docs/examples/environment.py. To ship it: move it to jaxrl_hpc/envs/corridor.py, add it to ENVS
in registry.py, and write a file for configs/.
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces

from jaxrl_hpc import config as configs
from jaxrl_hpc import registry
from jaxrl_hpc.envs.gymnax_bridge import from_gymnax
from jaxrl_hpc.schema import Schema, static
from jaxrl_hpc.train import train
from jaxrl_hpc.types import Env


class Config(Schema):
    """What a config may set."""

    name: Literal["Corridor"] = "Corridor"
    length: int = static(5, "steps from the middle to either end", ge=1)
    horizon: int = static(50, "time limit", ge=1)


@struct.dataclass
class State:
    time: jax.Array  # [] int32
    place: jax.Array  # [] int32, 0 in the middle
    side: jax.Array  # [] float32, -1 or 1: where the treasure is


@struct.dataclass
class Params:
    max_steps_in_episode: int = 50


class Corridor(environment.Environment):
    """Action 0 goes left, 1 goes right; reward 1 for the treasure, -1 for the trap, -0.01 a step."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    @property
    def default_params(self) -> Params:
        return Params()

    def _observe(self, state: State) -> jax.Array:
        return jnp.stack([state.place / self.length, state.side])

    def reset_env(self, key: jax.Array, params: Params) -> tuple[jax.Array, State]:
        state = State(jnp.int32(0), jnp.int32(0), jax.random.rademacher(key, (), jnp.float32))
        return self._observe(state), state

    def step_env(self, key: jax.Array, state: State, action: Any, params: Params):
        place = state.place + 2 * jnp.int32(action) - 1
        terminated = jnp.abs(place) >= self.length
        reward = jnp.where(terminated, jnp.sign(place) * state.side, 0.0) - 0.01
        state = state.replace(time=state.time + 1, place=place)
        return self._observe(state), state, reward, terminated, {}

    def is_truncated(self, state: State, params: Params) -> jax.Array:
        return state.time >= params.max_steps_in_episode

    def action_space(self, params: Params | None = None) -> spaces.Discrete:
        return spaces.Discrete(2)

    def observation_space(self, params: Params | None = None) -> spaces.Box:
        return spaces.Box(-1.0, 1.0, (2,))


def make(config: Config) -> Env:
    return from_gymnax(Corridor(config.length), Params(config.horizon), config.name)


def main(run_dir: str = "runs/example_environment") -> dict:
    registry.ENVS["Corridor"] = registry.Component(Config, make)
    config = configs.from_dict(
        {
            "agent": {"name": "dqn", "network": {"hidden": [32]}, "batch_size": 64},
            "env": {"name": "Corridor", "length": 4},
            "replay": {"name": "uniform", "capacity": 8192},
            "workflow": {"name": "fused", "num_envs": 8},
            "run": {"total_env_steps": 40_000, "eval_every": 10_000},
        }
    )
    return train(config, run_dir).summary or {}


if __name__ == "__main__":
    print(f"return {main()['eval_return_iqm']:.2f} of 0.96")
