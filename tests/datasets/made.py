"""Small datasets for tests, of environments whose every step is known."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np

from jaxrl_hpc.config.registry import find
from jaxrl_hpc.datasets import Columns, parquet
from jaxrl_hpc.runtime import record
from jaxrl_hpc.types import Agent, Env, Unrolls


def make_env(name: str) -> Env:
    component: Any = find("env", name)
    made: Env = component.make(component.config(name=name))
    return made


def nobody(env: Env) -> Agent:
    """An agent that only has to look like one: `mixed` replaces all it does."""
    nothing: Any = None
    return Agent(
        needs=Unrolls(),
        init=nothing,
        actor=nothing,
        carry=lambda ids: (),
        act=lambda params, carry, obs, key, greedy: (
            jax.vmap(lambda k: record.draw_action(env.spec, k))(key),
            carry,
            (),
        ),
        gradient=nothing,
        apply=nothing,
    )


def random_columns(env: Env, rows: int, seed: int = 0) -> Columns:
    """Random actions."""
    return record.act(env, nobody(env), (), jax.random.key(seed), rows, "exploring")


@functools.cache
def random_file(name: str, rows: int, copies: int = record.COPIES) -> Path:
    """A file of random actions in an environment; one per process. The part of each copy ends an episode."""
    path = Path(tempfile.mkdtemp(prefix="dataset")) / f"{name}.parquet"
    env = make_env(name)
    with mock.patch.object(record, "COPIES", copies):
        columns = random_columns(env, rows)
    parquet.write(path, columns, env.spec, {"env": {"name": name}})
    return path


def counting(rows: int, episode_length: int) -> Columns:
    """Observations that count rows, so that every transition can be told."""
    number = np.arange(rows, dtype=np.float32)
    place = np.arange(rows) % episode_length
    terminated = (place == episode_length - 1) & (np.arange(rows) // episode_length % 2 == 0)
    truncated = (place == episode_length - 1) & ~terminated
    obs = np.stack([number, -number], axis=1)
    action = np.tile(np.array([[0.5]], np.float32), (rows, 1))
    return Columns(obs, action, number, terminated, truncated, np.arange(rows) // episode_length, obs + 0.5)
