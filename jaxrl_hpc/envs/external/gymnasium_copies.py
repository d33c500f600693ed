"""B single Gymnasium environments, stepped one after the other.

This does not depend on a library's reset rule: each copy is reset explicitly in the step that ended its
episode. A copy that fails is identified by its number, and the others are not affected.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
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

    # -- how one of them is called; gymnasium_vector.Ones does this differently --

    def _actions(self, action: np.ndarray) -> Any:
        """[B] actions as the environments take them."""
        return to_library(self.envs[0].action_space, action)

    def _advance(self, copy: int, actions: Any) -> Any:
        return self.envs[copy].step(actions[copy])

    def _first(self, copy: int, actions: Any) -> np.ndarray:
        """The first observation of its next episode, once an episode has ended."""
        del actions
        return self._observation(self.envs[copy].reset(seed=None)[0])

    def _observation(self, value: Any) -> np.ndarray:
        return conform(value, self.spec.obs_shape, self.spec.obs_dtype, "an observation")

    def _take(self, copy: int, seen: Any, gain: Any, final: np.ndarray, reward: np.ndarray) -> None:
        """Write the result of a step into row `copy`."""
        final[copy] = self._observation(seen)
        reward[copy] = conform(gain, (), np.dtype(np.float32), "a reward")

    def _flag(self, value: Any, what: str) -> bool:
        return conform_flag(value, what)

    # -- the simulator -----------------------------------------------------------

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        return self._begin(range(len(self.envs)), seeds)

    def step(self, action: np.ndarray) -> StepOutcome:
        number, spec = len(self.envs), self.spec
        obs = np.zeros((number, *spec.obs_shape), spec.obs_dtype)
        final = np.zeros_like(obs)
        reward = np.zeros(number, np.float32)
        terminated, truncated = np.zeros(number, bool), np.zeros(number, bool)
        troubles: dict[int, str] = {}
        actions = self._actions(action)
        for i in range(number):
            self.busy = i
            try:
                seen, gain, ended, cut, _ = self._advance(i, actions)
                self._take(i, seen, gain, final, reward)
                failed, limit = self._flag(ended, "terminated"), self._flag(cut, "truncated")
                terminated[i], truncated[i] = failed, limit and not failed
                obs[i] = self._first(i, actions) if failed or limit else final[i]
            except FAULTS as error:
                troubles[i] = describe_exception(error)
        self.busy = None
        return StepOutcome(obs, final, reward, terminated, truncated, troubles)

    def restart(self, copies: list[int], seeds: np.ndarray) -> np.ndarray:
        return self._begin(copies, seeds, anew=True)

    def _begin(self, copies: Iterable[int], seeds: np.ndarray, anew: bool = False) -> np.ndarray:
        found = []
        for i, seed in zip(copies, seeds, strict=True):
            self.busy = i
            if anew:  # the internal state of the old one is unknown
                with contextlib.suppress(*FAULTS):
                    self.envs[i].close()
                self.envs[i] = self.make()
            found.append(self._observation(self.envs[i].reset(seed=int(seed))[0]))
        self.busy = None
        return np.stack(found)

    def close(self) -> None:
        for env in self.envs:
            env.close()
