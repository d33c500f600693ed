"""Environments with observations of several parts, several choices per step and masks of actions."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnasium import spaces as gym
from gymnax.environments import environment, spaces


@struct.dataclass
class State:
    goal: jax.Array
    time: jax.Array


@struct.dataclass
class Params:
    max_steps_in_episode: int = 4


class Doors(environment.Environment):
    """Of four doors two are open; behind the open one with the larger number is a reward of 1, behind a
    closed one −1. What is behind doors is not shown: the mask must tell. Observation: a dictionary."""

    @property
    def default_params(self) -> Params:
        return Params()

    def _obs(self, state: State) -> dict[str, Any]:
        mask = jnp.arange(4) == state.goal
        mask = mask.at[(state.goal + 3) % 4].set(True)
        return {
            "action_mask": mask,
            "clock": state.time,
            "sensors": {"noise": jnp.full((2, 2), 0.5), "time": state.time.astype(jnp.float32)},
        }

    def _best(self, state: State) -> jax.Array:
        return jnp.maximum(state.goal, (state.goal + 3) % 4)

    def reset_env(self, key: jax.Array, params: Params) -> tuple[Any, State]:
        state = State(jax.random.randint(key, (), 0, 4), jnp.int32(0))
        return self._obs(state), state

    def step_env(self, key: jax.Array, state: State, action: Any, params: Params) -> Any:
        opened = self._obs(state)["action_mask"][action]
        reward = jnp.where(opened, (action == self._best(state)).astype(jnp.float32), -1.0)
        after = State(jax.random.randint(key, (), 0, 4), state.time + 1)
        over = after.time >= params.max_steps_in_episode
        return self._obs(after), after, reward, over, {}

    def observation_space(self, params: Params) -> Any:
        inner = spaces.Dict({"noise": spaces.Box(0, 1, (2, 2)), "time": spaces.Box(0, 9, ())})
        return spaces.Dict(
            {"action_mask": spaces.Box(0, 1, (4,)), "clock": spaces.Discrete(5), "sensors": inner}
        )

    def action_space(self, params: Params | None = None) -> Any:
        return spaces.Discrete(4)


class Levers(Doors):
    """Two levers with three and two positions; each in the right one is worth a half."""

    def step_env(self, key: jax.Array, state: State, action: Any, params: Params) -> Any:
        goal = jnp.stack([state.goal % 3, state.goal % 2])
        reward = (action == goal).mean()
        after = State(jax.random.randint(key, (), 0, 4), state.time + 1)
        over = after.time >= params.max_steps_in_episode
        return self._obs(after), after, reward, over, {}

    def _obs(self, state: State) -> Any:
        return (jax.nn.one_hot(state.goal, 4), state.time)

    def observation_space(self, params: Params) -> Any:
        return spaces.Tuple((spaces.Box(0, 1, (4,)), spaces.Discrete(5)))

    def action_space(self, params: Params | None = None) -> Any:
        return spaces.Tuple((spaces.Discrete(3), spaces.Discrete(2)))


class Outside(gymnasium.Env):  # type: ignore[type-arg]
    """Two switches of three and two positions, numbered from 1 and 0, and masks of what may be chosen."""

    def __init__(self, masked: str = "part") -> None:
        self.masked = masked
        parts: dict[str, Any] = {"place": gym.Discrete(3), "numbers": gym.Box(-1, 1, (2, 2), np.float64)}
        if masked == "part":
            parts["action_mask"] = gym.MultiBinary(5)
        self.observation_space = gym.Dict(parts)
        self.action_space = gym.MultiDiscrete([3, 2], start=[1, 0])
        self.mask = np.array([1, 0, 1, 0, 1], np.int8)
        self.time = 0

    def _obs(self) -> dict[str, Any]:
        obs: dict[str, Any] = {"place": self.time % 3, "numbers": np.full((2, 2), self.time / 10)}
        return obs | ({"action_mask": self.mask} if self.masked == "part" else {})

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self.mask} if self.masked == "info" else {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.time = 0
        return self._obs(), self._info()

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        allowed = self.mask[int(action[0]) - 1] and self.mask[3 + int(action[1])]
        self.time += 1
        return self._obs(), float(allowed) * float(action[0]), self.time >= 4, False, self._info()


class Words(Outside):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gym.Dict({"text": gym.Text(5)})
