"""The probes as one gymnax environment: they differ in observation and reward only (see probes.py)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces

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

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind

    @property
    def default_params(self) -> ProbeParams:
        return ProbeParams(max_steps_in_episode=LENGTH.get(self.kind, 1))

    def _observe(self, state: ProbeState) -> jax.Array:
        if self.kind == "ProbeCredit":
            return jnp.array([state.time], jnp.float32)
        if self.kind in ("ProbeObservation", "ProbeBoth", "ProbeBothContinuous"):
            return state.sign[None]
        return jnp.zeros(1)

    def reset_env(self, key, params):
        state = ProbeState(jnp.int32(0), jax.random.rademacher(key, (), jnp.float32))
        return self._observe(state), state

    def step_env(self, key, state, action, params):
        self_sign = 2.0 * jnp.asarray(action, jnp.float32).reshape(-1)[0] - 1.0
        value = jnp.asarray(action, jnp.float32).reshape(-1)[0]
        reward = {
            "ProbeValue": lambda: jnp.float32(1),
            "ProbeObservation": lambda: state.sign,
            "ProbeCredit": lambda: (state.time == 1).astype(jnp.float32),
            "ProbeAction": lambda: self_sign,
            "ProbeBoth": lambda: self_sign * state.sign,
            "ProbeTruncation": lambda: jnp.float32(1),
            "ProbeActionContinuous": lambda: -((value - 0.5) ** 2),
            "ProbeBothContinuous": lambda: -((value - 0.5 * state.sign) ** 2),
        }[self.kind]()
        state = state.replace(time=state.time + 1)
        ends = self.kind != "ProbeTruncation"
        terminated = jnp.logical_and(ends, state.time >= params.max_steps_in_episode)
        return self._observe(state), state, reward, terminated, {}

    def is_truncated(self, state, params):
        return jnp.logical_and(self.kind == "ProbeTruncation", state.time >= params.max_steps_in_episode)

    def action_space(self, params=None):
        if self.kind.endswith("Continuous"):
            return spaces.Box(-2.0, 2.0, (1,))
        return spaces.Discrete(2)

    def observation_space(self, params):
        return spaces.Box(-1.0, 1.0, (1,))
