"""B single Gymnasium environments, stepped one after the other.

What a library does about resets plays no part here: each copy is reset by hand in the step that ended its
episode. A copy that fails is known by its number, and the others are not touched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxrl_hpc.envs.external.gymnasium_spaces import to_library
from jaxrl_hpc.envs.external.simulator import FAULTS, StepOutcome, conform, conform_flag, describe_exception
from jaxrl_hpc.types import EnvSpec


class Copies:
    """A `Simulator` of single environments."""

    restarts_alone = True

    def __init__(self, make: Callable[[], Any], spec: EnvSpec, copies: int) -> None:
        self.make, self.spec = make, spec
        self.envs = [make() for _ in range(copies)]
        self.busy: int | None = None

    def _reset(self, copy: int, seed: int | None) -> np.ndarray:
        self.busy = copy
        obs, _ = self.envs[copy].reset(seed=seed)
        return conform(obs, self.spec.obs_shape, self.spec.obs_dtype, "an observation")

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        obs = np.stack([self._reset(i, int(seed)) for i, seed in enumerate(seeds)])
        self.busy = None
        return obs

    def step(self, action: np.ndarray) -> StepOutcome:
        number, spec = len(self.envs), self.spec
        obs = np.zeros((number, *spec.obs_shape), spec.obs_dtype)
        final = np.zeros_like(obs)
        reward = np.zeros(number, np.float32)
        terminated, truncated = np.zeros(number, bool), np.zeros(number, bool)
        troubles: dict[int, str] = {}
        actions = to_library(self.envs[0].action_space, action)
        for i, env in enumerate(self.envs):
            self.busy = i
            try:
                seen, gain, failed, limit, _ = env.step(actions[i])
                final[i] = conform(seen, spec.obs_shape, spec.obs_dtype, "an observation")
                reward[i] = conform(gain, (), np.dtype(np.float32), "a reward")
                failed, limit = conform_flag(failed, "terminated"), conform_flag(limit, "truncated")
                terminated[i], truncated[i] = failed, limit and not failed
                obs[i] = self._reset(i, None) if failed or limit else final[i]
            except FAULTS as error:
                troubles[i] = describe_exception(error)
        self.busy = None
        return StepOutcome(obs, final, reward, terminated, truncated, troubles)

    def restart(self, copies: list[int], seeds: np.ndarray) -> np.ndarray:
        found = []
        for i, seed in zip(copies, seeds, strict=True):
            self.busy = i
            with contextlib.suppress(*FAULTS):
                self.envs[i].close()
            self.envs[i] = self.make()  # what it is like inside nobody knows
            found.append(self._reset(i, int(seed)))
        self.busy = None
        return np.stack(found)

    def close(self) -> None:
        for env in self.envs:
            env.close()
