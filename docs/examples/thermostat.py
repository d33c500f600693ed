"""A complete Gymnasium environment in one file, used without being registered: a room, a heater, the weather.

Any simulator that Python can call fits here: it runs outside of the compiled program, copy by copy. In this
folder:

    jaxrl-hpc train thermostat.yaml
"""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces


class Thermostat(gymnasium.Env):
    """Hold a room at 20 degrees. Observation: inside, outside, sine and cosine of the hour; action: heat."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Box(0.0, 1.0, (1,), np.float32)

    def __init__(self, power: float = 6.0) -> None:
        self.power = power  # degrees per hour of the heater

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # makes self.np_random
        self.hour = float(self.np_random.uniform(0, 24))
        self.inside = float(self.np_random.uniform(10, 25))
        self.mean = float(self.np_random.uniform(0, 10))
        self.steps = 0
        return self._observe(), {}

    def _outside(self) -> float:
        return self.mean + 5 * np.sin(2 * np.pi * (self.hour - 9) / 24)

    def _observe(self) -> np.ndarray:
        angle = 2 * np.pi * self.hour / 24
        numbers = [(self.inside - 20) / 5, self._outside() / 10, np.sin(angle), np.cos(angle)]
        return np.array(numbers, np.float32)

    def step(self, action):
        hours = 0.25
        self.inside += hours * (self.power * float(action[0]) - 0.2 * (self.inside - self._outside()))
        self.hour = (self.hour + hours) % 24
        self.steps += 1
        reward = -abs(self.inside - 20)
        frozen = self.inside < 0
        return self._observe(), reward, frozen, self.steps >= 96, {}
