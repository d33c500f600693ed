"""ExaBooster: control of the Fermilab Booster's gradient magnet power supply. See docs/exabooster.md.

Imports nothing heavy: gymnax is imported when an environment is made.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_hpc.envs.exabooster.config import ExaBoosterConfig
from jaxrl_hpc.types import Array, Env, PyTree

if TYPE_CHECKING:
    from jaxrl_hpc.datasets import Dataset
    from jaxrl_hpc.envs.exabooster.environment import EnvParams, ExaBooster

INFO_KEYS = ("abs_error", "regulator_abs_error")  # per step, to be summed over an episode


def __getattr__(name: str) -> Any:
    if name in ("episodes", "figures", "policies"):  # for `rl.envs.exabooster`, imported when used
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def make(config: ExaBoosterConfig) -> tuple[ExaBooster, EnvParams]:
    """The gymnax environment and its parameters."""
    from jaxrl_hpc.envs.exabooster.build import build

    return build(config)


def make_env(config: ExaBoosterConfig) -> Env:
    """The environment in the form that workflows use."""
    from jaxrl_hpc.envs.gymnax import from_gymnax

    env, params = make(config)

    def picture(act: Callable[..., Any], carry: PyTree, key: Array, label: str, folder: Path) -> None:
        """One episode, agent against regulator, as episode.png."""
        from jaxrl_hpc.envs.exabooster.episodes import record_episode
        from jaxrl_hpc.envs.exabooster.figures import episode_figure

        episode = record_episode(env, params, act, key, carry)
        episode_figure(episode, label).savefig(folder / "episode.png")

    made = from_gymnax(env, params, config.name, INFO_KEYS, summarise)

    def read_recording(path: str) -> Dataset:
        """A BOOSTR CSV as transitions of this environment."""
        from jaxrl_hpc.envs.exabooster.transitions import read_transitions

        return read_transitions(path, config, made.spec, np.asarray(params.deltas))

    return made.with_hooks(picture=picture, read_recording=read_recording)


def summarise(sums: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Sums of INFO_KEYS over episodes [episodes] -> the improvement factor over all of them.

    The sums come back with it: pooling over seeds adds them before dividing.
    """
    agent, regulator = (np.asarray(sums[name], np.float64) for name in INFO_KEYS)
    return {
        "improvement": np.asarray(regulator.sum() / agent.sum()),
        "abs_error": agent,
        "regulator_abs_error": regulator,
    }
