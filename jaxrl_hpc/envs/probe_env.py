"""The probes as one gymnax environment: they differ in observation and reward only (see probes.py)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_hpc.envs.gymnax_api import environment, spaces

LENGTH = {"ProbeCredit": 2, "ProbeTruncation": 2}


@struct.dataclass
class ProbeState:
    time: jax.Array  # [] int32
    sign: jax.Array  # [] float32, -1 or 1


@struct.dataclass
class ProbeParams:
    max_steps_in_episode: int = 1


class Probe(environment.Environment):
    """All probes: they differ in observation and reward only."""

    def __init__(self, name: str):
        super().__init__()
        self.kind, self.continuous = name.removesuffix("Continuous"), name.endswith("Continuous")

    @property
    def default_params(self) -> ProbeParams:
        return ProbeParams(max_steps_in_episode=LENGTH.get(self.kind, 1))

    def _observe(self, state: ProbeState) -> jax.Array:
        if self.kind == "ProbeCredit":
            return jnp.array([state.time], jnp.float32)
        if self.kind in ("ProbeObservation", "ProbeBoth"):
            return state.sign[None]
        return jnp.zeros(1)

    def reset_env(self, key, params):
        state = ProbeState(jnp.int32(0), jax.random.rademacher(key, (), jnp.float32))
        return self._observe(state), state

    def step_env(self, key, state, action, params):
        goal = {"ProbeAction": 1.0, "ProbeBoth": state.sign}
        if self.kind in goal:
            reward = self._match(action, goal[self.kind])
        else:
            reward = {
                "ProbeValue": jnp.float32(1),
                "ProbeObservation": state.sign,
                "ProbeCredit": (state.time == 1).astype(jnp.float32),
                "ProbeTruncation": jnp.float32(1),
            }[self.kind]
        state = state.replace(time=state.time + 1)
        ends = self.kind != "ProbeTruncation"
        terminated = jnp.logical_and(ends, state.time >= params.max_steps_in_episode)
        return self._observe(state), state, reward, terminated, {}

    def _match(self, action, sign):
        """How well the action fits a sign: 1 or -1 for one of two, minus a square for a number."""
        value = jnp.asarray(action, jnp.float32).reshape(-1)[0]
        return -((value - 0.5 * sign) ** 2) if self.continuous else (2.0 * value - 1.0) * sign

    def is_truncated(self, state, params):
        return jnp.logical_and(self.kind == "ProbeTruncation", state.time >= params.max_steps_in_episode)

    def action_space(self, params=None):
        if self.continuous:
            return spaces.Box(-2.0, 2.0, (1,))
        return spaces.Discrete(2)

    def observation_space(self, params):
        return spaces.Box(-1.0, 1.0, (1,))
