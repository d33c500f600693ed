"""An external simulator as an `Env`: its steps are ordered callbacks from the compiled program.

The compiler may neither drop, repeat nor reorder such calls. They cannot be vmapped; a vmap over parts of the
copies (logical shards) becomes one call of all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.experimental import io_callback

from jaxrl_hpc.envs.external.host import Host
from jaxrl_hpc.envs.external.simulator import ExternalConfig, Simulator
from jaxrl_hpc.types import Array, Env, EnvSpec, EnvStep, HostHooks, PyTree


class ExternalState(NamedTuple):
    """The compiled program's view of the simulator."""

    ticket: Array  # [B] uint32, all the same: which simulator
    obs: PyTree  # [B, …] the last observations, for episodes that are cut


def seeds_of(keys: Array) -> Array:
    """Typed keys [B] -> seeds [B] uint32. Keys come out of a split, so that a word of them is random."""
    return jax.random.key_data(keys)[..., -1].astype(jnp.uint32)


def merged(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """A function of leading axes [B] whose vmap over [L] is one call with [L · B]."""
    flexible = custom_vmap(function)

    @flexible.def_vmap
    def rule(size: int, batched: Any, *args: PyTree):
        def together(x: Array, is_batched: bool) -> Array:
            x = x if is_batched else jnp.broadcast_to(x, (size, *x.shape))
            return x.reshape(-1, *x.shape[2:])

        results = flexible(*jax.tree.map(together, args, tuple(batched)))
        apart = jax.tree.map(lambda x: x.reshape(size, -1, *x.shape[1:]), results)
        return apart, jax.tree.map(lambda _: True, apart)

    return flexible


def env_of(host: Host) -> Env:
    """The environment whose simulators `host` keeps."""
    spec = host.spec

    def shapes(copies: int) -> tuple[jax.ShapeDtypeStruct, ...]:
        def of(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((copies, *shape), dtype)

        return (of(spec.obs_dtype, *spec.obs_shape), of(np.float32), of(np.bool_), of(np.uint32))

    def host_reset(seeds: Any) -> tuple[np.ndarray, np.ndarray]:
        return host.reset(np.asarray(seeds))

    def host_step(ticket: Any, seeds: Any, action: Any) -> tuple[np.ndarray, ...]:
        return host.step(np.asarray(ticket), np.asarray(seeds), np.asarray(action))

    @merged
    def call_reset(seeds: Array) -> tuple[Array, Array]:
        obs, _, _, ticket = shapes(seeds.shape[0])
        return io_callback(host_reset, (ticket, obs), seeds, ordered=True)

    @merged
    def call_step(ticket: Array, seeds: Array, action: Array) -> tuple[Array, ...]:
        obs, number, flag, _ = shapes(seeds.shape[0])
        results = (obs, obs, number, flag, flag, number)
        return io_callback(host_step, results, ticket, seeds, action, ordered=True)

    def reset(keys: Array) -> tuple[ExternalState, Array]:
        ticket, obs = call_reset(seeds_of(keys))
        return ExternalState(ticket, obs), obs

    def step(keys: Array, state: ExternalState, action: Array) -> tuple[ExternalState, EnvStep]:
        obs, final, reward, terminated, truncated, dropped = call_step(state.ticket, seeds_of(keys), action)
        cut = dropped.reshape(-1, *([1] * len(spec.obs_shape))) > 0
        final = jnp.where(cut, state.obs, final)
        outcome = EnvStep(obs, final, reward, terminated, truncated, {"dropped": dropped})
        return ExternalState(state.ticket, obs), outcome

    return Env(spec, reset, step, HostHooks(simulators=host, external=True))


def make_external(
    spec: EnvSpec, make: Callable[[int], Simulator], config: ExternalConfig, **more: Any
) -> Env:
    """Training and evaluation of one environment, with separate simulators."""
    spec = spec._replace(info_keys=(*spec.info_keys, "dropped"))
    training = env_of(Host(spec, make, config))
    evaluating = env_of(Host(spec, make, config, keep=1))
    return training.with_hooks(for_evaluation=evaluating.with_hooks(**more), **more)
