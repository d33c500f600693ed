"""Recorded transitions in place of an environment, where none is available.

Observations, actions and bounds are those of the file. There are no episodes to play: an evaluation estimates
the policy's return by fitted Q evaluation (fitted_q.py). Only the workflow `offline` supports it.
"""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp

from jaxrl_hpc import datasets
from jaxrl_hpc.envs.fitted_q import FittedQSettings, estimator
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.schema import ComponentConfig, static
from jaxrl_hpc.types import Array, Env, EnvStep, HostHooks, PyTree


class Config(ComponentConfig):
    """The file, and how policies are evaluated on it."""

    name: Literal["dataset"] = "dataset"
    path: str = static("", "file of recorded transitions (docs/offline.md)")
    gamma: float = static(0.99, "discount of estimated returns", ge=0, lt=1)
    updates: int = static(4_000, "updates of fitted Q evaluation, per evaluation", ge=1)
    batch_size: int = static(256, "transitions per such update", ge=1)
    hidden: tuple[int, ...] = static((64, 64), "widths of its network", min_length=1)
    learning_rate: float = static(1e-3, "its Adam step size", gt=0)


def make(config: Config) -> Env:
    if not config.path:
        raise UserError("env.path: name a file of recorded transitions, such as `jaxrl-hpc record` writes")
    found = datasets.open_dataset(config.path)
    spec = found.spec
    settings = FittedQSettings(
        config.gamma, config.updates, config.batch_size, config.hidden, config.learning_rate
    )

    # shapes are all that a workflow which does not act asks of these
    def reset(keys: Array) -> tuple[PyTree, PyTree]:
        return jnp.zeros(keys.shape[0]), jnp.zeros((keys.shape[0], *spec.obs_shape), spec.obs_dtype)

    def step(keys: Array, state: PyTree, action: Array) -> tuple[PyTree, EnvStep]:
        copies = keys.shape[0]
        obs, nothing = jnp.zeros((copies, *spec.obs_shape), spec.obs_dtype), jnp.zeros(copies, bool)
        return state, EnvStep(obs, obs, jnp.zeros(copies), nothing, nothing, {})

    return Env(spec, reset, step, HostHooks(recorded=lambda: found, estimate=estimator(found, settings)))
