"""A Gymnasium environment that goes wrong on demand, named by a dotted path in tests."""

import os
import signal
import time

import gymnasium
import numpy as np
from gymnasium import spaces


class Broken(gymnasium.Env):
    """Ten steps of noise; the third instance of those made after `made = 0` goes wrong at its step `at`."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)
    made = 0

    def __init__(self, how: str = "", at: int = 4) -> None:
        self.how, self.at = how, at
        self.number, self.steps, self.time = Broken.made, 0, 0
        Broken.made += 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._observe(), {}

    def _observe(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def step(self, action):
        self.steps, self.time = self.steps + 1, self.time + 1
        obs, reward = self._observe(), 1.0
        if self.number == 2 and self.steps == self.at:
            if self.how == "raise":
                raise RuntimeError("the pump has stopped")
            if self.how == "hang":
                time.sleep(1000)
            obs = {"nan": obs * np.nan, "shape": np.zeros(3), "dtype": np.array(["a", "b"])}.get(
                self.how, obs
            )
            reward = {"reward": np.inf}.get(self.how, 1.0)
        return obs, reward, False, self.time >= 10, {}


class Doomed(Broken):
    """Goes wrong in the copy that is reset with the seed `doomed`: also where copies are other processes."""

    def __init__(self, how: str = "", doomed: int = 0) -> None:
        super().__init__(how)
        self.doomed, self.number = doomed, 0

    def reset(self, *, seed=None, options=None):
        if seed == self.doomed:
            self.number = 2
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.how == "kill" and self.number == 2 and self.steps + 1 == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


gymnasium.register("Doomed-v0", entry_point=Doomed)
