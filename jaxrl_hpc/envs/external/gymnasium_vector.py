"""Gymnasium's vector environments: all copies in one call, under each of its three autoreset rules.

same step   a finished copy comes back reset, its last observation is in info["final_obs"]
disabled    the copies that ended are reset by a mask
next step   the step after the end resets and ignores its action. It must not become a transition, and the
            others cannot be held meanwhile; so each copy is a vector environment of one, which takes
            that step at once and alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxrl_hpc.envs.external.gymnasium_spaces import to_library
from jaxrl_hpc.envs.external.simulator import (
    FAULTS,
    StepOutcome,
    Wrong,
    conform,
    conform_flags,
    conform_rows,
    describe_exception,
)
from jaxrl_hpc.types import EnvSpec


def rule_of(env: Any) -> str:
    """Which rule a vector environment follows; next step is what Gymnasium takes for granted."""
    mode = env.metadata.get("autoreset_mode", "NextStep")
    return str(getattr(mode, "value", mode))


class Vector:
    """A `Simulator` of one vector environment that resets in the same step, or by a mask."""

    busy: int | None = None
    restarts_alone = False

    def __init__(self, env: Any, spec: EnvSpec) -> None:
        self.env, self.spec, self.rule, self.copies = env, spec, rule_of(env), int(env.num_envs)

    def _conform(self, values: Any) -> np.ndarray:
        troubles: dict[int, str] = {}
        obs, _ = conform_rows(values, self.spec, self.copies, np.zeros(self.copies), troubles)
        for copy, text in troubles.items():
            self.busy = copy
            raise Wrong(f"{text}, after a reset")
        return obs

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        self.busy = None
        each = hasattr(self.env, "env_fns")  # Gymnasium's own two; others take one seed for all copies
        obs, _ = self.env.reset(seed=[int(seed) for seed in seeds] if each else int(seeds[0]))
        return self._conform(obs).copy()

    def _advance(self, actions: Any) -> Any:
        return self.env.step(actions)

    def step(self, action: np.ndarray) -> StepOutcome:
        troubles: dict[int, str] = {}
        self.busy = None
        obs, reward, failed, limit, info = self._advance(to_library(self.env.single_action_space, action))
        obs, reward = conform_rows(obs, self.spec, self.copies, reward, troubles)
        terminated = conform_flags(failed, self.copies, "terminated", troubles)
        truncated = conform_flags(limit, self.copies, "truncated", troubles) & ~terminated
        done = terminated | truncated
        obs, final = obs.copy(), obs
        if done.any() and self.rule == "Disabled":
            fresh, _ = self.env.reset(options={"reset_mask": done})
            final, obs = obs, np.where(_rows(done, obs), self._conform(fresh), obs)
        elif done.any():
            final = obs.copy()
            self._take_last(info.get("final_obs"), done, final, troubles)
        return StepOutcome(obs, final, reward, terminated, truncated, troubles)

    def _take_last(self, last: Any, done: np.ndarray, final: np.ndarray, troubles: dict[int, str]) -> None:
        """Last observations of copies that ended into `final`; they are as untrusted as all others."""
        if last is None or len(last) != self.copies:
            raise Wrong("ended an episode without a last observation in info['final_obs']")
        for i in np.flatnonzero(done):
            try:
                final[i] = conform(last[i], self.spec.obs_shape, self.spec.obs_dtype, "a last observation")
            except Wrong as wrong:
                troubles[int(i)] = str(wrong)

    def restart(self, copies: list[int], seeds: np.ndarray) -> np.ndarray:
        raise Wrong("cannot be restarted alone")

    def close(self) -> None:
        self.env.close()


class Ones:
    """A `Simulator` of vector environments of one copy each, for those that reset in the next step."""

    restarts_alone = True

    def __init__(self, make: Callable[[], Any], spec: EnvSpec, copies: int) -> None:
        self.make, self.spec = make, spec
        self.envs = [make() for _ in range(copies)]
        self.busy: int | None = None

    def _one(self, values: Any, reward: Any = (0.0,)) -> tuple[np.ndarray, np.float32]:
        troubles: dict[int, str] = {}
        obs, gain = conform_rows(values, self.spec, 1, reward, troubles)
        if troubles:
            raise Wrong(troubles[0])
        return obs[0].copy(), gain[0]

    def _flag(self, values: Any, what: str) -> bool:
        troubles: dict[int, str] = {}
        flags = conform_flags(values, 1, what, troubles)
        if troubles:
            raise Wrong(troubles[0])
        return bool(flags[0])

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        return self.restart(list(range(len(self.envs))), seeds, anew=False)

    def step(self, action: np.ndarray) -> StepOutcome:
        number, spec = len(self.envs), self.spec
        obs = np.zeros((number, *spec.obs_shape), spec.obs_dtype)
        final = np.zeros_like(obs)
        reward = np.zeros(number, np.float32)
        terminated, truncated = np.zeros(number, bool), np.zeros(number, bool)
        troubles: dict[int, str] = {}
        actions = to_library(self.envs[0].single_action_space, action)
        for i, env in enumerate(self.envs):
            self.busy = i
            try:
                seen, gain, ended, cut, _ = env.step(actions[i : i + 1])
                final[i], reward[i] = self._one(seen, gain)
                failed, limit = self._flag(ended, "terminated"), self._flag(cut, "truncated")
                terminated[i], truncated[i] = failed, limit and not failed
                obs[i] = final[i]
                if failed or limit:
                    obs[i], _ = self._one(env.step(actions[i : i + 1])[0])  # its reset, without the action
            except FAULTS as error:
                troubles[i] = describe_exception(error)
        self.busy = None
        return StepOutcome(obs, final, reward, terminated, truncated, troubles)

    def restart(self, copies: list[int], seeds: np.ndarray, anew: bool = True) -> np.ndarray:
        found = []
        for i, seed in zip(copies, seeds, strict=True):
            self.busy = i
            if anew:
                with contextlib.suppress(*FAULTS):
                    self.envs[i].close()
                self.envs[i] = self.make()
            found.append(self._one(self.envs[i].reset(seed=int(seed))[0])[0])
        self.busy = None
        return np.stack(found)

    def close(self) -> None:
        for env in self.envs:
            env.close()


def _rows(mask: np.ndarray, like: np.ndarray) -> np.ndarray:
    return mask.reshape(-1, *([1] * (like.ndim - 1)))
