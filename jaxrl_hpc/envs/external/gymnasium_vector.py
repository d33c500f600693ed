"""Gymnasium's vector environments: all copies in one call, for each of its three autoreset rules.

same step   a finished copy is returned reset, with its last observation in info["final_obs"]
disabled    the copies that ended are reset by a mask
next step   the step after the end resets and ignores its action. It must not become a transition, and
            the others cannot be paused; so each copy is a vector environment of one, which takes that step
            at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxrl_hpc.envs.external.gymnasium_copies import Copies
from jaxrl_hpc.envs.external.gymnasium_spaces import to_library
from jaxrl_hpc.envs.external.simulator import (
    StepOutcome,
    Wrong,
    conform,
    conform_flags,
    conform_rows,
)
from jaxrl_hpc.types import EnvSpec


def rule_of(env: Any) -> str:
    """The rule of a vector environment; Gymnasium's default is next step."""
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
        """Write the last observations of finished copies into `final`; they are checked like all others."""
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


class Ones(Copies):
    """A `Simulator` of vector environments of one copy each, for those that reset in the next step."""

    def _actions(self, action: np.ndarray) -> Any:
        return to_library(self.envs[0].single_action_space, action)

    def _advance(self, copy: int, actions: Any) -> Any:
        return self.envs[copy].step(actions[copy : copy + 1])

    def _first(self, copy: int, actions: Any) -> np.ndarray:
        return self._observation(self._advance(copy, actions)[0])  # its reset, without the action

    def _one(self, values: Any, reward: Any = (0.0,)) -> tuple[np.ndarray, np.ndarray]:
        troubles: dict[int, str] = {}
        obs, gain = conform_rows(values, self.spec, 1, reward, troubles)
        if troubles:
            raise Wrong(troubles[0])
        return obs[0].copy(), gain[0]

    def _observation(self, value: Any) -> np.ndarray:
        return self._one(value)[0]

    def _take(self, copy: int, seen: Any, gain: Any, final: np.ndarray, reward: np.ndarray) -> None:
        final[copy], reward[copy] = self._one(seen, gain)

    def _flag(self, value: Any, what: str) -> bool:
        troubles: dict[int, str] = {}
        flags = conform_flags(value, 1, what, troubles)
        if troubles:
            raise Wrong(troubles[0])
        return bool(flags[0])


def _rows(mask: np.ndarray, like: np.ndarray) -> np.ndarray:
    return mask.reshape(-1, *([1] * (like.ndim - 1)))
