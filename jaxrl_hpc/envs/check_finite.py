"""Environments of one's own inside the program: numbers that are not finite are faults, as they are outside.

Otherwise a NaN would train to the end unseen. All that a step costs is a look at its numbers: the host is
called only when something is wrong. Shipped environments are not check_finite.
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
    """The environment's own state, and what a fault is told and mended with."""

    inner: PyTree
    obs: Array  # [B, …] the last that was seen, for episodes that are cut
    steps: Array  # [B] int32 so far, all the same


class FiniteCheck(Host):
    """A host without simulators: it hears of faults. Counts of dropped episodes are of this process."""

    def __init__(self, spec: EnvSpec, config: ExternalConfig) -> None:
        super().__init__(spec, lambda copies: None, config)  # type: ignore[arg-type, return-value]

    def report(self, *arrays: Any) -> None:
        """Flags [N] (observations, rewards, observations after a reset are finite), copies and steps [N]."""
        seen, gain, first, copy, steps = (np.asarray(x) for x in arrays)
        wrong = np.flatnonzero(~(seen & gain))
        self.steps = int(steps[wrong[0]])
        names = {True: "a reward", False: "an observation"}
        texts = {int(copy[i]): f"returned {names[bool(seen[i])]} that is not finite" for i in wrong}
        if not first[wrong].all():  # to begin again would not help
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

    @merged  # so that the condition stays one: under a vmap both of its branches would run
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
            # used, so that the check is not taken out as something that nobody needs
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
