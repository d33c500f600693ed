"""User environments inside the program: numbers that are not finite are faults, as for external simulators.

Otherwise training would continue on NaNs unnoticed. A step costs only a test of its numbers: the host is
called only on a fault. Shipped environments are not checked.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from jaxrl_hpc.envs.external.bridge import merged
from jaxrl_hpc.envs.external.host import Host
from jaxrl_hpc.envs.external.simulator import ExternalConfig
from jaxrl_hpc.ops import streams
from jaxrl_hpc.types import Array, Env, EnvSpec, PyTree


class CheckedState(NamedTuple):
    """The environment's own state, and data to report and repair faults."""

    inner: PyTree
    obs: Array  # [B, …] the last observations, for episodes that are cut
    steps: Array  # [B] int32 so far, all the same


class FiniteCheck(Host):
    """A host without simulators, for reports of faults. It counts the dropped episodes of this process."""

    def __init__(self, spec: EnvSpec, config: ExternalConfig) -> None:
        super().__init__(spec, lambda copies: None, config)  # type: ignore[arg-type, return-value]

    def report(self, *arrays: Any) -> None:
        """Flags [N] (observations, rewards, observations after a reset are finite), copies and steps [N]."""
        seen, gain, first, copy, steps = (np.asarray(x) for x in arrays)
        wrong = np.flatnonzero(~(seen & gain))
        self.steps = int(steps[wrong[0]])
        names = {True: "a reward", False: "an observation"}
        texts = {int(copy[i]): f"returned {names[bool(seen[i])]} that is not finite" for i in wrong}
        if not first[wrong].all():  # restarting would not help
            self._fail(self._sentence("after a reset it returned an observation that is not finite"))
        self._trouble(texts, len(wrong))

    def counts(self) -> dict[str, int]:
        return super().counts() if self.config.on_error == "reset" else {}


def finite(values: Array) -> Array:
    """[B, …] -> [B] bool; numbers that are whole always are."""
    if not jnp.issubdtype(values.dtype, jnp.floating):
        return jnp.ones(values.shape[0], bool)
    return jnp.isfinite(values.reshape(values.shape[0], -1)).all(axis=1)


def choose(chosen: Array, one: PyTree, other: PyTree) -> PyTree:
    """Rows [B, …] of `one` where chosen [B], else of `other`."""

    def of_one_copy(flag: Array, a: PyTree, b: PyTree) -> PyTree:
        return jax.tree.map(lambda x, y: jax.lax.select(flag, x, y), a, b)

    return jax.vmap(of_one_copy)(chosen, one, other)


def check_finite(env: Env, config: ExternalConfig) -> Env:
    """The environment with env.on_error: a fault ends the run, or drops the copy's episode."""
    resets = config.on_error == "reset"
    spec = env.spec._replace(info_keys=(*env.spec.info_keys, "dropped")) if resets else env.spec
    host = FiniteCheck(spec, config)

    @merged  # keeps this a real branch: under a vmap both branches would run
    def check(seen: Array, gain: Array, first: Array, copy: Array, steps: Array) -> Array:
        sane = seen & gain

        def tell() -> Array:
            io_callback(host.report, None, seen, gain, first, copy, steps)
            return sane

        return jax.lax.cond(sane.all(), lambda: sane, tell)

    def reset(keys: Array) -> tuple[CheckedState, Array]:
        inner, obs = env.reset(keys)
        return CheckedState(inner, obs, jnp.zeros(keys.shape[0], jnp.int32)), obs

    def step(keys: Array, state: CheckedState, action: Array):
        inner, outcome = env.step(keys, state.inner, action)
        steps = state.steps + 1
        seen = finite(state.obs) & finite(outcome.final_obs) & finite(outcome.obs)
        gain, copies = jnp.isfinite(outcome.reward), jnp.arange(keys.shape[0], dtype=jnp.int32)
        if not resets:
            sane = check(seen, gain, jnp.ones_like(seen), copies, steps)
            # used, so that the compiler does not remove the check
            outcome = outcome._replace(truncated=outcome.truncated | ~sane)
            return CheckedState(inner, outcome.obs, steps), outcome
        again = jax.vmap(lambda key: streams.stream(key, streams.RESET_AFTER_FAULT))(keys)
        fresh, first = env.reset(again)
        sane = check(seen, gain, finite(first), copies, steps)
        inner, obs = choose(sane, (inner, outcome.obs), (fresh, first))
        outcome = outcome._replace(
            obs=obs,
            final_obs=choose(sane, outcome.final_obs, state.obs),
            reward=jnp.where(sane, outcome.reward, 0.0),
            terminated=outcome.terminated & sane,
            truncated=outcome.truncated | ~sane,
            info={**outcome.info, "dropped": 1.0 - sane.astype(jnp.float32)},
        )
        return CheckedState(inner, obs, steps), outcome

    return env._replace(spec=spec, reset=reset, step=step).with_hooks(simulators=host)
