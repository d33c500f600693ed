"""The annealing as a gymnax environment.

    observation   T, and the structure vector S / max S* [200]
    action        T − 0.1, T, T + 0.1, within [0.1, 1]; then 67 solver steps at the new temperature
    reward        −mean((S − S*)²) / max(S*)²
    episode       30 actions, then truncated; it starts from c = 0.005 U(−1, 1) at T = 1, without order

S* is the mean structure at the end of slow annealing runs (`annealed.npz`, by `target.py`), three times as
long as an episode, from just below the transition down to T = 0.8. Cold films order quickly, but too strongly
and with defects; hot ones well, but slowly: a schedule of temperatures can beat any constant one.
"""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_hpc.envs.cahn_hilliard import Config
from jaxrl_hpc.envs.cahn_hilliard.solver import advance, film
from jaxrl_hpc.envs.cahn_hilliard.structure import POINTS, structure
from jaxrl_hpc.envs.gymnax_api import environment, spaces
from jaxrl_hpc.types import Array

COLDEST, HOTTEST, CHANGE = 0.1, 1.0, 0.1
NOISE = 0.005  # of the field at the start
TARGETS = Path(__file__).with_name("annealed.npz")


@struct.dataclass
class State:
    field: Array  # [n, n] float32, c
    temperature: Array  # [] float32
    time: Array  # [] int32 actions so far


@struct.dataclass
class Params:
    max_steps_in_episode: int = 30


def first_field(key: Array, size: int) -> Array:
    return NOISE * jax.random.uniform(key, (size, size), minval=-1.0, maxval=1.0)


def load_target(size: int) -> np.ndarray:
    """S* [200] for films of this size."""
    with np.load(TARGETS) as stored:
        return stored[str(size)]


class CahnHilliard(environment.Environment):
    """See the module."""

    def __init__(self, config: Config, target: np.ndarray | None = None) -> None:
        super().__init__()
        self.config = config
        self.target = load_target(config.size) if target is None else target
        self.scale = float(self.target.max())

    @property
    def default_params(self) -> Params:
        return Params(max_steps_in_episode=self.config.horizon)

    def _observe(self, state: State, seen: Array) -> Array:
        return jnp.concatenate([state.temperature[None], seen / self.scale])

    def reset_env(self, key: Array, params: Params) -> tuple[Array, State]:
        field = first_field(key, self.config.size)
        state = State(field, jnp.float32(self.config.start_temperature), jnp.int32(0))
        return self._observe(state, structure(field)), state

    def step_env(self, key: Array, state: State, action: Array, params: Params):
        change = CHANGE * (jnp.asarray(action, jnp.float32) - 1.0)
        temperature = jnp.clip(state.temperature + change, COLDEST, HOTTEST)
        field = advance(state.field, film(temperature), self.config.solver_steps)
        seen = structure(field)
        reward = -jnp.mean(((seen - self.target) / self.scale) ** 2)
        state = State(field, temperature, state.time + 1)
        return self._observe(state, seen), state, reward, jnp.zeros((), bool), {}

    def is_truncated(self, state: State, params: Params) -> Array:
        return state.time >= params.max_steps_in_episode

    def action_space(self, params: Params | None = None) -> spaces.Discrete:
        return spaces.Discrete(3)

    def observation_space(self, params: Params | None = None) -> spaces.Box:
        return spaces.Box(0.0, np.inf, (1 + POINTS,))
