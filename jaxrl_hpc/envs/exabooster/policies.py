"""Reference controllers: fixed rules with increasing knowledge of the disturbance.

A minimum-variance controller predicts e_{t+1} and e_{t+2}, which its action cannot change any more, and
chooses v_t such that the mean of e_{t+3} is zero:

    v_t = −(a ê_{t+2} + 10 g3 v_{t−1} + f_{t+3} + d) / (10 g2)

Its knowledge of d (drift), f (Main Injector phase) and the burst is read from the state, which no agent
observes: these rules are yardsticks, not competitors. Åström, "Introduction to Stochastic Control Theory"
(1970), chapter 6.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_hpc.envs.exabooster import channels, generator
from jaxrl_hpc.envs.exabooster.environment import EnvParams, EnvState, ExaBooster
from jaxrl_hpc.types import Array


class Rule(Protocol):
    """A controller with constants that are traced: all of one kind share a compiled program."""

    def __call__(
        self, env: ExaBooster, params: EnvParams, state: EnvState, beta: Array
    ) -> tuple[Array, Array]:
        """-> VIMIN relative to VIMIN_CENTRE, and the rule's own β, which starts as the regulator's."""


@struct.dataclass
class Hold:
    """Keep the VIMIN of the start."""

    def __call__(
        self, env: ExaBooster, params: EnvParams, state: EnvState, beta: Array
    ) -> tuple[Array, Array]:
        return state.agent.vimin, beta


@struct.dataclass
class ProportionalIntegral:
    """The regulator's rule with other constants. With all three zero, VIMIN = B_VIMIN: no compensation."""

    proportional: float  # α
    integral: float  # γ
    offset: float = 1.0  # factor on β

    def __call__(
        self, env: ExaBooster, params: EnvParams, state: EnvState, beta: Array
    ) -> tuple[Array, Array]:
        error = generator.measured(state.agent.error)
        beta = beta + self.integral * error
        return state.machine.set_point - self.proportional * error - self.offset * beta, beta


@struct.dataclass
class MinimumVariance:
    """The rule above; each field is 1 where that part of the disturbance is known and 0 where it is not."""

    drift: float = 0.0
    phase: float = 0.0
    burst: float = 0.0

    def __call__(
        self, env: ExaBooster, params: EnvParams, state: EnvState, beta: Array
    ) -> tuple[Array, Array]:
        plant, machine, (v_1, v_2, v_3) = env.plant(state, params), state.machine, state.agent.inputs

        def disturbance(ahead: int) -> Array:
            return (
                self.drift * generator.DRIFT_DECAY ** (ahead - 1) * machine.drift
                + self.phase * generator.ramp_at(plant, machine, ahead)
                + self.burst * generator.burst_at(plant, machine, ahead)
            )

        error = generator.measured(state.agent.error)
        next_1 = plant.pole * error + 10 * (plant.gain_2 * v_2 + plant.gain_3 * v_3) + disturbance(1)
        next_2 = plant.pole * next_1 + 10 * (plant.gain_2 * v_1 + plant.gain_3 * v_2) + disturbance(2)
        v = -(plant.pole * next_2 + 10 * plant.gain_3 * v_1 + disturbance(3)) / (10 * plant.gain_2)
        return machine.set_point + v, beta


RULES: dict[str, Rule] = {
    "zero": ProportionalIntegral(0.0, 0.0, 0.0),
    "hold": Hold(),
    "regulator": ProportionalIntegral(generator.PROPORTIONAL, generator.INTEGRAL),
    "pi": ProportionalIntegral(0.065, generator.INTEGRAL),
    "pi_tuned": ProportionalIntegral(0.055, 1.5e-3),
    "minimum_variance": MinimumVariance(),
    "with_drift": MinimumVariance(drift=1.0),
    "with_phase": MinimumVariance(drift=1.0, phase=1.0),
    "clairvoyant": MinimumVariance(drift=1.0, phase=1.0, burst=1.0),
}


def nearest_action(env: ExaBooster, params: EnvParams, change: Array) -> Array:
    """The action nearest to a desired change of VIMIN."""
    if env.config.continuous:
        return jnp.clip(change / params.deltas, -1.0, 1.0)
    return jnp.argmin(jnp.abs(params.deltas - change))


@partial(jax.jit, static_argnames=("env", "episodes", "limited"))
def play(
    env: ExaBooster, params: EnvParams, rule: Rule, key: Array, episodes: int, limited: bool
) -> tuple[Array, Array]:
    """Sums of |e| of the rule and of the shadow regulator [episodes]. Consumes key.

    `limited` sends the rule through the environment's actions; otherwise it sets VIMIN freely.
    """
    reset_key, run_key = jax.random.split(key)
    _, state = jax.vmap(env.reset_env, (0, None))(jax.random.split(reset_key, episodes), params)

    def step(key: Array, state: EnvState, beta: Array) -> tuple[EnvState, Array, tuple[Array, Array]]:
        vimin, beta = rule(env, params, state, beta)
        if limited:
            action = nearest_action(env, params, vimin - state.agent.vimin)
            _, state, _, _, _ = env.step_env(key, state, action, params)
        else:
            state = env.transition(key, state, vimin, params)
        agent, shadow = (jnp.abs(generator.measured(loop.error)) for loop in (state.agent, state.shadow))
        return state, beta, (agent, shadow)

    def tick(carry: tuple, t: Array) -> tuple[tuple, None]:
        state, beta, alive, sums = carry
        keys = jax.random.split(jax.random.fold_in(run_key, t), episodes)
        state, beta, errors = jax.vmap(step)(keys, state, beta)
        sums = tuple(total + alive * error for total, error in zip(sums, errors, strict=True))
        return (state, beta, alive * (errors[0] < channels.ERROR_LIMIT), sums), None

    blank = (jnp.zeros(episodes), jnp.zeros(episodes))
    ticks = jnp.arange(env.config.horizon)
    (_, _, _, sums), _ = jax.lax.scan(tick, (state, state.beta, jnp.ones(episodes), blank), ticks)
    return sums


def improvement(
    env: ExaBooster, params: EnvParams, rule: Rule, key: Array, episodes: int, limited: bool = False
) -> tuple[float, float]:
    """The improvement factor of a rule and its standard error."""
    agent, regulator = (np.asarray(x, np.float64) for x in play(env, params, rule, key, episodes, limited))
    factor = regulator.sum() / agent.sum()
    spread = np.std(regulator - factor * agent, ddof=1) / np.sqrt(
        episodes
    )  # delta method for a ratio of means
    return float(factor), float(spread / agent.mean())
