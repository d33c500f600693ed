"""A recording of the real machine as transitions of this environment.

Row t of the log has the error e_t and the VIMIN sent before it; `vimin_next` is what was sent after it. So
the action of tick t is the change vimin_next_t − VIMIN_t, its reward is that of e_{t+1}, and observations are
the windows of rows up to t and up to t + 1. Continuous changes are clipped to `delta_max`, discrete ones
mapped to the nearest action. Episodes end at gaps of the log, where they are cut, and where |e| reaches its
limit.
"""

from __future__ import annotations

import numpy as np

from jaxrl_hpc.datasets import Columns, Dataset, from_columns
from jaxrl_hpc.envs.exabooster import channels
from jaxrl_hpc.envs.exabooster.config import ExaBoosterConfig
from jaxrl_hpc.envs.exabooster.environment import COMPAT_SCALE, COMPAT_SHIFT
from jaxrl_hpc.envs.exabooster.recording import Recording, read, window_ends
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.types import EnvSpec


def read_transitions(path: str, config: ExaBoosterConfig, spec: EnvSpec, deltas: np.ndarray) -> Dataset:
    """Transitions of a BOOSTR CSV. `deltas`: VIMIN changes of discrete actions, or the continuous scale."""
    log = read(path, config.recording_rows, need_set_point=False)
    return from_columns(path, transitions(path, log, config, deltas), spec)


def transitions(path: str, log: Recording, config: ExaBoosterConfig, deltas: np.ndarray) -> Columns:
    rows = 1 if config.observation == "compat" else config.stack
    ticks = window_ends(log.joined, rows - 1, 1)
    if not len(ticks):
        raise UserError(f"recording {path}: no {rows + 1} neighbouring ticks without a gap (env.stack)")
    standard = channels.standardise(log.rows)  # [n, 5]
    if config.observation == "compat":
        standard = standard * COMPAT_SCALE + COMPAT_SHIFT

    def windows(ends: np.ndarray) -> np.ndarray:  # oldest row first, flat
        return standard[ends[:, None] + np.arange(1 - rows, 1)].reshape(len(ends), -1)

    change = log.vimin_next[ticks] - log.rows[ticks, 0]
    if config.continuous:
        action = np.clip(change / deltas[0], -1.0, 1.0).astype(np.float32)[:, None]
    else:
        action = np.abs(change[:, None] - deltas).argmin(axis=1).astype(np.int32)
    error = np.abs(log.rows[ticks + 1, 1])
    lost = error >= channels.ERROR_LIMIT
    paid = {"abs": -error, "exp": np.exp(-5 * error), "exp_minus_one": np.exp(-5 * error) - 1}[config.reward]
    reward = paid - np.where(lost, 5.0 * config.horizon, 0.0)
    breaks = np.append(np.diff(ticks) != 1, True)
    episode = np.cumsum(np.append(0, (breaks | lost)[:-1]))
    return Columns(windows(ticks), action, reward, lost, breaks & ~lost, episode, windows(ticks + 1))
