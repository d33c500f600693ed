"""One episode, tick by tick, of an agent and the shadow regulator, for the picture."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.envs.exabooster import channels, generator
from jaxrl_hpc.envs.exabooster.environment import EnvParams, EnvState, ExaBooster
from jaxrl_hpc.envs.exabooster.policies import Rule, nearest_action
from jaxrl_hpc.types import Array, PyTree

Policy = Callable[[PyTree, Array, Array], tuple[Array, PyTree]]  # (carry, obs, key) -> (action, carry)


class BoosterEpisode(NamedTuple):
    """Arrays [n + 1]: the common start and n ticks."""

    seconds: np.ndarray
    iminer: np.ndarray
    vimin: np.ndarray
    regulator_iminer: np.ndarray
    regulator_vimin: np.ndarray

    @property
    def improvement(self) -> float:
        """Improvement factor of this episode; over several, add the sums before dividing."""
        return float(np.abs(self.regulator_iminer[1:]).sum() / np.abs(self.iminer[1:]).sum())


def record_episode(
    env: ExaBooster, params: EnvParams, policy: Policy, key: Array, carry: PyTree = ()
) -> BoosterEpisode:
    """Play one episode; `carry` is what the policy starts with. Consumes key."""
    return _record(env, params, lambda carry, obs, state, key: policy(carry, obs, key), key, lambda _: carry)


def record_rule(env: ExaBooster, params: EnvParams, rule: Rule, key: Array) -> BoosterEpisode:
    """Play one episode with a reference rule, through the environment's actions. Consumes key."""

    def act(beta: Array, obs: Array, state: EnvState, key: Array) -> tuple[Array, Array]:
        vimin, beta = rule(env, params, state, beta)
        return nearest_action(env, params, vimin - state.agent.vimin), beta

    return _record(env, params, act, key, lambda state: state.beta)


def _record(
    env: ExaBooster,
    params: EnvParams,
    act: Callable[[PyTree, Array, EnvState, Array], tuple[Array, PyTree]],
    key: Array,
    first_carry: Callable[[EnvState], PyTree],
) -> BoosterEpisode:
    reset_key, run_key = jax.random.split(key)

    def values(state: EnvState) -> Array:
        loops = (state.agent, state.shadow)
        return jnp.stack([x for loop in loops for x in (generator.measured(loop.error), loop.vimin)])

    def tick(held: tuple, key: Array) -> tuple[tuple, tuple[Array, Array]]:
        obs, state, carry = held
        act_key, step_key = jax.random.split(key)
        action, carry = act(carry, obs, state, act_key)
        obs, state, _, terminated, _ = env.step_env(step_key, state, action, params)
        return (obs, state, carry), (values(state), terminated)

    @jax.jit
    def play() -> tuple[Array, Array, Array]:
        obs, state = env.reset_env(reset_key, params)
        keys = jax.random.split(run_key, env.config.horizon)
        _, (rows, terminated) = jax.lax.scan(tick, (obs, state, first_carry(state)), keys)
        return values(state), rows, terminated

    first, rows, terminated = jax.device_get(play())
    length = int(np.argmax(terminated)) + 1 if terminated.any() else len(rows)
    table = np.concatenate([first[None], rows[:length]]).astype(np.float64)
    return BoosterEpisode(
        seconds=np.arange(length + 1) * channels.TICK_SECONDS,
        iminer=table[:, 0],
        vimin=table[:, 1] + channels.VIMIN_CENTRE,
        regulator_iminer=table[:, 2],
        regulator_vimin=table[:, 3] + channels.VIMIN_CENTRE,
    )
