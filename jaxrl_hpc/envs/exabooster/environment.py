"""ExaBooster: hold the Booster's minimum magnet current better than its own regulator does.

Each tick (1/15 s) the agent changes VIMIN; the current responds three ticks later. The same noise drives a
shadow regulator from the same start, so that every episode contains its own baseline. The improvement
factor is ΣΣ|e_regulator| / ΣΣ|e_agent| over ticks and episodes; a mean of per-episode ratios would flatter.

Row t of an observation is [VIMIN sent before e_t, e_t, LINFRQ_t, IB_t, MDAT40_t]; oldest row first, flat.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_hpc.envs.exabooster import channels, generator
from jaxrl_hpc.envs.exabooster.config import ExaBoosterConfig
from jaxrl_hpc.envs.exabooster.generator import Loop, Plant, Signals
from jaxrl_hpc.envs.exabooster.recording import Residuals, replay
from jaxrl_hpc.envs.exabooster.surrogate import Surrogate, respond_learned
from jaxrl_hpc.envs.gymnax_api import environment, spaces
from jaxrl_hpc.types import Array, PyTree

_CHANNELS = len(channels.NAMES)
# Rows inside are standardised with VIMIN as an offset; this turns one into EXARL's min–max units.
COMPAT_SCALE = (channels.SCALE / (channels.MAXIMUM - channels.MINIMUM)).astype(np.float32)
COMPAT_SHIFT = ((channels.CENTRE - channels.MINIMUM) / (channels.MAXIMUM - channels.MINIMUM)).astype(
    np.float32
)


@struct.dataclass
class Start:
    """Where an episode begins: the regulator's loop after its warm-up. Stacked into a bank [n, …]."""

    machine: PyTree  # Machine, or Replay with a recording
    loop: Loop
    beta: Array  # [] the regulator's integral
    window: Array  # [stack · 5] standardised rows
    plant: Array  # [] int32 which plant fit
    vimin_low: Array  # [] range of VIMIN over the last 150 ticks, for EXARL's exit rule
    vimin_high: Array  # []


@struct.dataclass
class EnvState(environment.EnvState):
    """Leaves [] but for the window."""

    time: Array  # int32 ticks since the start
    machine: PyTree  # Machine, or Replay with a recording
    agent: Loop
    shadow: Loop
    beta: Array
    window: Array  # [stack · 5]
    plant: Array  # int32
    vimin_low: Array
    vimin_high: Array
    abs_error: Array  # sum so far
    regulator_abs_error: Array  # sum so far
    regulator_return: Array


@struct.dataclass
class EnvParams(environment.EnvParams):
    """Everything an episode reads. The bank is megabytes: pass params as an argument where you can."""

    bank: Start = None  # type: ignore[assignment]  # leaves [n, …]
    plants: Plant = None  # type: ignore[assignment]  # leaves [3]
    deltas: Array = None  # type: ignore[assignment]  # [actions] change of VIMIN; [1] the scale if continuous
    residuals: Residuals | tuple = ()
    surrogate: Surrogate | tuple = ()
    max_steps_in_episode: int = 100


class ExaBooster(environment.Environment[EnvState, EnvParams]):
    """A gymnax 1.x environment; build it with `make(config)`."""

    def __init__(self, config: ExaBoosterConfig, params: EnvParams) -> None:
        super().__init__()
        self.config = config
        self._params = params
        self._deltas = np.asarray(params.deltas)

    @property
    def default_params(self) -> EnvParams:
        return self._params

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def num_actions(self) -> int:
        return 1 if self.config.continuous else len(self._deltas)

    def action_space(self, params: EnvParams | None = None) -> spaces.Space:
        if self.config.continuous:
            return spaces.Box(-1.0, 1.0, (1,), jnp.float32)
        return spaces.Discrete(len(self._deltas))

    def observation_space(self, params: EnvParams | None = None) -> spaces.Box:
        rows = self.config.stack if self.config.observation == "stack" else 1
        return spaces.Box(-np.inf, np.inf, (rows * _CHANNELS,), jnp.float32)

    def reset_env(self, key: Array, params: EnvParams) -> tuple[Array, EnvState]:
        """A start from the bank: one gather. Consumes key."""
        size = params.bank.beta.shape[0]
        # Not randint, which draws twice: this runs on every step for the auto-reset.
        drawn = generator.materialise(_below(jax.random.bits(key), size))
        index = jnp.int32(0) if self.config.fixed_start else drawn
        start: Start = jax.tree.map(lambda leaf: leaf[index], params.bank)
        zero = jnp.zeros(())
        state = EnvState(
            time=jnp.zeros((), jnp.int32),
            machine=start.machine,
            agent=start.loop,
            shadow=start.loop,
            beta=start.beta,
            window=start.window,
            plant=start.plant,
            vimin_low=start.vimin_low,
            vimin_high=start.vimin_high,
            abs_error=zero,
            regulator_abs_error=zero,
            regulator_return=zero,
        )
        return self.get_obs(state), state

    def step_env(
        self, key: Array, state: EnvState, action: Any, params: EnvParams
    ) -> tuple[Array, EnvState, Array, Array, dict[str, Array]]:
        change = self._change(action, params)
        wanted = state.agent.vimin + change
        low, high = (bound - channels.VIMIN_CENTRE for bound in (channels.VIMIN_LOW, channels.VIMIN_HIGH))
        state = self.transition(key, state, jnp.clip(wanted, low, high), params)

        error = jnp.abs(generator.measured(state.agent.error))
        regulator_error = jnp.abs(generator.measured(state.shadow.error))
        lost = error >= channels.ERROR_LIMIT
        remaining = (params.max_steps_in_episode - state.time).astype(jnp.float32)
        reward = self._reward(error) - jnp.where(lost, 5.0 * remaining, 0.0)
        ended = lost
        if self.config.legacy:
            ended = lost | (wanted < state.vimin_low) | (wanted > state.vimin_high)

        state = state.replace(
            abs_error=state.abs_error + error,
            regulator_abs_error=state.regulator_abs_error + regulator_error,
            regulator_return=state.regulator_return + self._reward(regulator_error),
        )
        info = {
            "abs_error": error,
            "regulator_abs_error": regulator_error,
            "regulator_return": state.regulator_return,
            "improvement": state.regulator_abs_error / jnp.maximum(state.abs_error, channels.ERROR_GRID),
        }
        terminated = generator.materialise(ended.astype(jnp.int32)) > 0
        obs, state = self._apply_transition_gradient_policy(self.get_obs(state), state)
        return obs, state, reward, terminated, info

    def transition(self, key: Array, state: EnvState, vimin: Array, params: EnvParams) -> EnvState:
        """One tick in which the agent sends `vimin` (an offset from VIMIN_CENTRE). Consumes key."""
        plant = self.plant(state, params)
        shadow_v, beta = generator.regulate(generator.measured(state.shadow.error), state.beta)
        machine: PyTree
        if isinstance(params.residuals, Residuals):
            machine, signals, set_point, shadow_v = replay(state.machine, params.residuals)
        else:
            set_point = state.machine.set_point
            machine, signals = generator.advance(key, state.machine, plant)

        def respond(loop: Loop, vimin: Array) -> Loop:
            if isinstance(params.surrogate, Surrogate):
                exogenous = state.window[-3:]
                return respond_learned(params.surrogate, loop, vimin, set_point, exogenous, signals)
            return generator.respond(plant, loop, vimin, set_point, signals)

        agent = respond(state.agent, vimin)
        return state.replace(
            time=state.time + 1,
            machine=machine,
            agent=agent,
            shadow=respond(state.shadow, set_point + shadow_v),
            beta=beta,
            window=jnp.concatenate([state.window[_CHANNELS:], standard_row(agent, signals)]),
        )

    def plant(self, state: EnvState, params: EnvParams) -> Plant:
        """The plant fit of this episode."""
        if self.config.domain_randomisation:
            return jax.tree.map(lambda leaf: leaf[state.plant], params.plants)
        return jax.tree.map(lambda leaf: leaf[self.config.fit], params.plants)

    def get_obs(self, state: EnvState, params: PyTree = None, key: PyTree = None) -> Array:
        if self.config.observation == "stack":
            return state.window
        return state.window[-_CHANNELS:] * COMPAT_SCALE + COMPAT_SHIFT

    def _change(self, action: Any, params: EnvParams) -> Array:
        if self.config.continuous:
            return jnp.clip(jnp.reshape(action, ()), -1.0, 1.0) * params.deltas[0]
        return params.deltas[action]

    def _reward(self, error: Array) -> Array:
        if self.config.reward == "abs":
            return -error
        return jnp.exp(-5.0 * error) - (1.0 if self.config.reward == "exp_minus_one" else 0.0)


def standard_row(loop: Loop, signals: Signals) -> Array:
    """The newest row [5] of the log, standardised."""
    values = (loop.vimin, generator.measured(loop.error), signals.linac, signals.current, signals.mdat40)
    centre = (0.0, *channels.CENTRE[1:])  # VIMIN already is an offset
    return jnp.stack(
        [
            (x - np.float32(c)) * np.float32(1 / s)
            for x, c, s in zip(values, centre, channels.SCALE, strict=True)
        ]
    )


def _below(bits: Array, size: int) -> Array:
    """Uniform in {0 … size − 1} from 32 random bits, 24 of which are used."""
    fraction = (bits >> 8).astype(jnp.float32) * np.float32(2**-24)
    return jnp.minimum((fraction * size).astype(jnp.int32), size - 1)
