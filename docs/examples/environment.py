"""A complete environment in one file: a corridor with a treasure at one end and a trap at the other.

A sign at the start says on which side the treasure is. Environments are written for one copy, as gymnax 1.x
environments, and named by their class. The package makes a batch of copies that reset themselves, and keeps
time limits apart from failures. In this folder:

    jaxrl-hpc train corridor.yaml
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces


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

    def __init__(self, length: int = 5) -> None:
        super().__init__()
        self.length = length  # steps from the middle to either end

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
