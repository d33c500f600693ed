"""Environments by name.

    env = rl.envs.make("CartPole-v1")
    state, obs = env.reset(jax.random.split(jax.random.key(0), 8))     # eight copies

`rl.envs.names()` lists them. Modules of the package are attributes, such as `rl.envs.exabooster`.
"""

from __future__ import annotations

from typing import Any

from jaxrl_hpc.api.parts import attribute_of, settings_of
from jaxrl_hpc.config.registry import ENVS, plugins
from jaxrl_hpc.types import Env

__all__ = ["make", "names"]


def make(name: str, **settings: Any) -> Env:
    """An environment; it runs as many copies as it is given keys.

    Args:
      name: such as "CartPole-v1", or `module:Class` for a class of your own (gymnax or Gymnasium).
      settings: as in a config, such as params={"max_steps_in_episode": 200}.
    """
    component, config = settings_of("env", name, settings)
    return component.make(config)


def names() -> list[str]:
    """All names that `make` and configs know."""
    return [*ENVS, *plugins("env")]


def __getattr__(name: str) -> Any:
    return attribute_of(__name__, "env", "envs", make, name)
