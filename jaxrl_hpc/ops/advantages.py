"""Advantages over unrolls [T, B] that may contain episode ends.

V-trace (Espeholt et al. 2018), with rho_t = pi(a_t | s_t) / mu(a_t | s_t):

    delta_t = min(rho_bar, rho_t) (r_t + gamma d_t V(s'_t) - V(s_t))
    v_t - V(s_t) = delta_t + gamma lambda min(c_bar, rho_t) (1 - last_t) (v_{t+1} - V(s_{t+1}))
    A_t = min(rho_bar, rho_t) (r_t + gamma d_t V(s'_t) - V(s_t)
                               + gamma lambda (1 - last_t) (v_{t+1} - V(s_{t+1})))

With rho = 1 both v_t - V(s_t) and A_t are GAE(lambda) (Schulman et al. 2016), and n-step returns when
lambda is 1. s'_t is what step t led to before any reset: `d_t` is 0 where the episode terminated, and a
truncated episode (`last` but d = 1) is bootstrapped from the value of its own last observation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxrl_hpc.types import Array, PyTree


class Targets(NamedTuple):
    """Targets of a policy and a value function."""

    advantage: Array  # [T, B]
    value: Array  # [T, B]


def _backwards(error: Array, decay: Array) -> Array:
    """x_t = error_t + decay_t x_{t+1}, with x_T = 0; both [T, B]."""

    def step(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        total = now[0] + now[1] * later
        return total, total

    return jax.lax.scan(step, jnp.zeros_like(error[0]), (error, decay), reverse=True, unroll=8)[1]


def gae(
    reward: Array,
    discount: Array,
    last: Array,
    value: Array,
    next_value: Array,
    gamma: Array,
    lambda_: Array,
) -> Targets:
    """Generalised advantage estimates. All arrays [T, B]; next_value is V(s'_t)."""
    chex.assert_rank([reward, discount, last, value, next_value], 2)
    chex.assert_equal_shape([reward, discount, last, value, next_value])
    error = reward + gamma * discount * next_value - value
    advantage = _backwards(error, gamma * lambda_ * (1.0 - last))
    return Targets(advantage, advantage + value)


def vtrace(
    reward: Array,
    discount: Array,
    last: Array,
    value: Array,
    next_value: Array,
    log_rho: Array,
    gamma: Array,
    lambda_: Array,
    rho_bar: Array,
    c_bar: Array,
) -> Targets:
    """V-trace advantages and value targets. All arrays [T, B]; log_rho = log pi - log mu."""
    chex.assert_rank([reward, discount, last, value, next_value, log_rho], 2)
    chex.assert_equal_shape([reward, discount, last, value, next_value, log_rho])
    rho = jnp.exp(log_rho)
    clipped = jnp.minimum(rho_bar, rho)
    goes_on = gamma * lambda_ * (1.0 - last)
    error = reward + gamma * discount * next_value - value
    correction = _backwards(clipped * error, goes_on * jnp.minimum(c_bar, rho))  # v_t - V(s_t)
    later = jnp.concatenate([correction[1:], jnp.zeros_like(correction[:1])])
    return Targets(clipped * (error + goes_on * later), correction + value)


def next_values(
    value: Array, discount: Array, last: Array, rows: PyTree, evaluate: Callable[[PyTree], Array]
) -> Array:
    """V(s'_t) for every step of an unroll, computing only what `value` does not hold already.

    Within an episode s'_t is s_{t+1}. The rest, the last row of the unroll and truncated steps inside
    it, is evaluated B rows at a time, as often as there are rows to evaluate. Gives no gradient.

    Args:
      value, discount, last: [T, B], value being V(s_t).
      rows: leaves [T, B, …], what `evaluate` needs to know of s'_t.
      evaluate: leaves [B, …] -> [B].
    """
    chex.assert_rank([value, discount, last], 2)
    value, rows = jax.lax.stop_gradient((value, rows))
    length, width = value.shape
    final = evaluate(jax.tree.map(lambda x: x[-1], rows))
    found = jnp.concatenate([value[1:], final[None]]).reshape(-1)
    if length == 1:
        return found.reshape(value.shape)
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows)
    truncated = jnp.logical_and(last, discount > 0).at[-1].set(False).reshape(-1)
    count = truncated.sum()
    beyond = length * width
    where = jnp.nonzero(truncated, size=beyond, fill_value=beyond)[0]

    def more(loop: tuple[Array, Array]) -> Array:
        return loop[0] < count

    def evaluate_some(loop: tuple[Array, Array]) -> tuple[Array, Array]:
        start, found = loop
        index = jax.lax.dynamic_slice(where, (start,), (width,))
        some = evaluate(jax.tree.map(lambda x: x.at[index].get(mode="clip"), flat))
        return start + width, found.at[index].set(some, mode="drop")

    # `where` holds T B entries and starts are multiples of B, so no slice is ever shifted
    return jax.lax.while_loop(more, evaluate_some, (jnp.int32(0), found))[1].reshape(value.shape)
