"""Exploration of actors, with one key per environment copy, so that a copy's stream does not depend on the
distribution of copies over devices and ranks."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from jaxrl_hpc.types import Array


def epsilon_greedy(key: Array, values: Array, epsilon: Array, mask: Array | None = None) -> Array:
    """Greedy action with probability 1 - epsilon, else uniform.

    Args:
      key: [B], consumed.
      values: [B, A] action values.
      epsilon: [] or [B].
      mask: [B, A] bool, the actions that are allowed, one of each copy at least; None: all.
    """
    chex.assert_rank(values, 2)
    num_actions = values.shape[-1]

    def draws(one: Array) -> tuple[Array, Array]:
        # one draw of two words costs half of two split keys
        explore, action = jax.random.uniform(one, (2,))
        return explore, action

    explore, uniform = jax.vmap(draws)(key)
    if mask is None:
        random_action = jnp.minimum((uniform * num_actions).astype(jnp.int32), num_actions - 1)
    else:  # the k-th of those that are allowed
        count = mask.sum(axis=-1)
        chosen = jnp.minimum((uniform * count).astype(jnp.int32), count - 1)
        random_action = (jnp.cumsum(mask, axis=-1) <= chosen[:, None]).sum(axis=-1).astype(jnp.int32)
        values = jnp.where(mask, values, -jnp.inf)
    return jnp.where(explore < epsilon, random_action, jnp.argmax(values, axis=-1).astype(jnp.int32))


def epsilon_ladder(env_ids: Array, num_envs: int, base: Array, power: Array) -> Array:
    """Ape-X: copy i of N explores with base^(1 + power * i / (N - 1)) (Horgan et al. 2018, eq. 1)."""
    position = env_ids.astype(jnp.float32) / max(num_envs - 1, 1)
    return base ** (1.0 + power * position)


def linear_decay(progress: Array, start: Array, end: Array, fraction: Array) -> Array:
    """From start to end over the first `fraction` of the run, then end."""
    done = jnp.clip(progress / jnp.maximum(fraction, 1e-9), 0.0, 1.0)
    return start + done * (end - start)
