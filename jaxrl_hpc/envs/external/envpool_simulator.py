"""envpool's simulators (Weng et al. 2022), stepped from the host.

envpool resets a finished copy in its next step, whose action it ignores. Such steps never reach an agent:
finished copies take them at once, without the others, which envpool allows. An explicit reset would differ:
in Atari games a lost life ends the episode, and envpool's own reset continues with the next life, while an
explicit reset starts a new game. For a score only the end of the game counts (`whole_games`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from jaxrl_hpc.envs.external.simulator import StepOutcome, Wrong, conform_rows, in_one_line
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.extras import how_to_install
from jaxrl_hpc.types import EnvSpec


class PoolTask(NamedTuple):
    """An envpool environment and its settings."""

    id: str  # envpool's name
    settings: dict[str, Any]  # of envpool.make
    channels_last: bool = False  # images: envpool puts stacked frames first
    whole_games: bool = False  # lost lives do not end an episode


def make_pool(task: PoolTask, copies: int, seed: int) -> Any:
    try:
        import envpool
    except ImportError:
        raise UserError(f"env.name: {task.id} needs envpool: {how_to_install('external')}") from None
    given = {"num_envs": copies, "num_threads": 1, "seed": seed % 2**31, **task.settings}
    try:
        return envpool.make(task.id, env_type="gymnasium", **given)
    except Exception as error:
        raise UserError(
            f"env.name: envpool cannot make {task.id} with {given}: {in_one_line(error)}"
        ) from error


def reset_some(pool: Any, chosen: np.ndarray) -> np.ndarray:
    """Start the chosen copies [B] from scratch -> their observations [K, …], in order of copies."""
    obs, info = pool.reset(np.flatnonzero(chosen).astype(np.int32))
    return obs[np.argsort(info["env_id"])]


def go_on(pool: Any, ended: np.ndarray, spec: EnvSpec) -> np.ndarray:
    """Start the next episode of the chosen copies [B], which have just finished one -> as `reset_some`."""
    copies = np.flatnonzero(ended).astype(np.int32)
    ignored = np.zeros((len(copies), *spec.action_shape), spec.action_dtype)
    obs, _, _, _, info = pool.step(ignored, copies)
    return obs[np.argsort(info["env_id"])]


class Pool:
    """A `Simulator` of one envpool. Seeds are given when a pool is made, so that a reset makes another."""

    busy: int | None = None
    restarts_alone = True

    def __init__(self, task: PoolTask, spec: EnvSpec, copies: int) -> None:
        self.task, self.spec, self.copies = task, spec, copies
        self.pool: Any = None

    def _arrange(self, obs: np.ndarray) -> np.ndarray:
        obs = obs.astype(self.spec.obs_dtype, copy=False)  # MuJoCo's have 64 bits
        return np.ascontiguousarray(np.moveaxis(obs, 1, -1)) if self.task.channels_last else obs

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        self.close()
        self.pool = make_pool(self.task, self.copies, int(seeds[0]))
        return self._arrange(reset_some(self.pool, np.ones(self.copies, bool)))

    def step(self, action: np.ndarray) -> StepOutcome:
        obs, reward, failed, limit, info = self.pool.step(action)
        done = failed | limit
        terminated, truncated = failed.copy(), limit.copy()
        if self.task.whole_games:
            terminated &= info["terminated"].astype(bool)
        following = obs
        if done.any():
            following = obs.copy()
            following[done] = go_on(self.pool, done, self.spec)
        troubles: dict[int, str] = {}
        final, reward = conform_rows(self._arrange(obs), self.spec, self.copies, reward, troubles)
        following = final if following is obs else self._arrange(following)
        return StepOutcome(following, final, reward, terminated, truncated, troubles)

    def restart(self, copies: list[int], seeds: np.ndarray) -> np.ndarray:
        chosen = np.zeros(self.copies, bool)
        chosen[copies] = True
        obs = self._arrange(reset_some(self.pool, chosen))
        self.busy = None
        for row, copy in zip(obs, copies, strict=True):
            if not np.isfinite(row).all():
                self.busy = copy
                raise Wrong("returned an observation that is not finite, after a reset")
        return obs

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close()
            self.pool = None
