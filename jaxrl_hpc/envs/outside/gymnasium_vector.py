"""Gymnasium's vector environments: all copies in one call, under each of its three autoreset rules.

same step   a finished copy comes back reset, its last observation is in info["final_obs"]
disabled    the copies that ended are reset by a mask
next step   the step after the end resets and ignores its action. It must not become a transition, and the
            others cannot be held meanwhile; so each copy is a vector environment of one, which takes
            that step at once and alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxrl_hpc.envs.outside.gymnasium_spaces import to_library
from jaxrl_hpc.envs.outside.simulator import Outcome, Wrong, conform_rows
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
        self.env, self.spec, self.rule = env, spec, rule_of(env)

    def _conform(self, values: Any) -> np.ndarray:
        troubles: dict[int, str] = {}
        obs, _ = conform_rows(values, self.spec, np.zeros(self.env.num_envs), troubles)
        for copy, text in troubles.items():
            raise Wrong(f"{text} (copy {copy}) after a reset")
        return obs

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        each = hasattr(self.env, "env_fns")  # Gymnasium's own two; others take one seed for all copies
        obs, _ = self.env.reset(seed=[int(seed) for seed in seeds] if each else int(seeds[0]))
        return self._conform(obs).copy()

    def _advance(self, actions: Any) -> Any:
        return self.env.step(actions)

    def step(self, action: np.ndarray) -> Outcome:
        troubles: dict[int, str] = {}
        obs, reward, failed, limit, info = self._advance(to_library(self.env.single_action_space, action))
        obs, reward = conform_rows(obs, self.spec, reward, troubles)
        terminated, truncated = np.array(failed, bool), np.array(limit, bool) & ~np.asarray(failed, bool)
        done = terminated | truncated
        obs, final = obs.copy(), obs
        if done.any() and self.rule == "Disabled":
            fresh, _ = self.env.reset(options={"reset_mask": done})
            final, obs = obs, np.where(_rows(done, obs), self._conform(fresh), obs)
        elif done.any():
            last = info["final_obs"]
            final = obs.copy()
            for i in np.flatnonzero(done):
                final[i] = last[i]
        return Outcome(obs, final, reward, terminated, truncated, troubles)

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
        obs, gain = conform_rows(values, self.spec, np.asarray(reward), troubles)
        if troubles:
            raise Wrong(troubles[0])
        return obs[0].copy(), gain[0]

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        return self.restart(list(range(len(self.envs))), seeds, anew=False)

    def step(self, action: np.ndarray) -> Outcome:
        number, spec = len(self.envs), self.spec
        obs = np.zeros((number, *spec.obs_shape), spec.obs_dtype)
        final = np.zeros_like(obs)
        reward = np.zeros(number, np.float32)
        terminated, truncated = np.zeros(number, bool), np.zeros(number, bool)
        actions = to_library(self.envs[0].single_action_space, action)
        for i, env in enumerate(self.envs):
            self.busy = i
            seen, gain, failed, limit, _ = env.step(actions[i : i + 1])
            final[i], reward[i] = self._one(seen, gain)
            terminated[i], truncated[i] = failed[0], limit[0] and not failed[0]
            obs[i] = final[i]
            if failed[0] or limit[0]:
                obs[i], _ = self._one(env.step(actions[i : i + 1])[0])  # its reset; the action is ignored
        self.busy = None
        return Outcome(obs, final, reward, terminated, truncated, {})

    def restart(self, copies: list[int], seeds: np.ndarray, anew: bool = True) -> np.ndarray:
        found = []
        for i, seed in zip(copies, seeds, strict=True):
            self.envs[i] = self.make() if anew else self.envs[i]
            found.append(self._one(self.envs[i].reset(seed=int(seed))[0])[0])
        return np.stack(found)

    def close(self) -> None:
        for env in self.envs:
            env.close()


def _rows(mask: np.ndarray, like: np.ndarray) -> np.ndarray:
    return mask.reshape(-1, *([1] * (like.ndim - 1)))
