"""Multi-step returns over windows and trajectories that may contain episode ends.

`discount` is 0 where an episode terminated and 1 elsewhere (gamma is applied here); `last` marks
terminated or truncated steps, beyond which no reward belongs to the same episode.
"""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxrl_hpc.types import Array, PyTree


class FoldedWindow(NamedTuple):
    """A window of n steps combined into one transition: target = reward + discount * value(next)."""

    reward: Array  # [N] sum of gamma^i r_i up to the window's or the episode's end
    discount: Array  # [N] gamma^k, or 0 where the episode terminated inside the window
    final: Array  # [N] int32 index in the window of the step that reaches the bootstrap observation


def fold_window(reward: Array, discount: Array, last: Array, gamma: Array) -> FoldedWindow:
    """n-step return of each of N windows, cut at the first episode end inside it.

    Args:
      reward, discount, last: [n, N].
      gamma: scalar.
    """
    chex.assert_rank([reward, discount, last], 2)
    chex.assert_equal_shape([reward, discount, last])
    window = reward.shape[0]
    total = reward[0]
    alive = 1.0 - last[0].astype(reward.dtype)  # 1 until the episode ends
    factor = gamma * discount[0]
    final = jnp.zeros(reward.shape[1], jnp.int32)
    for i in range(1, window):  # n is small: unrolled, fuses into one pass
        total = total + alive * factor * reward[i]
        factor = jnp.where(alive > 0, factor * gamma * discount[i], factor)
        final = jnp.where(alive > 0, i, final)
        alive = alive * (1.0 - last[i].astype(reward.dtype))
    return FoldedWindow(total, factor, final)


def take_step(window: PyTree, index: Array) -> PyTree:
    """Rows `window[index[j], j]` of leaves [n, N, …]."""

    def pick(leaf: Array) -> Array:
        if leaf.shape[0] == 1:
            return leaf[0]
        where = index.reshape(1, -1, *([1] * (leaf.ndim - 2)))
        return jnp.take_along_axis(leaf, where, axis=0)[0]

    return jax.tree.map(pick, window)


def sequence_returns(
    reward: Array, discount: Array, last: Array, next_value: Array, gamma: Array, n_step: int
) -> Array:
    """n-step return of every step of a sequence, cut where its episode or the sequence ends.

        G^1_t = r_t + gamma d_t V_t,   G^m_t = r_t + gamma d_t (V_t if last_t or t = T - 1 else G^{m-1}_{t+1})

    Args:
      reward, discount, last: [T, N].
      next_value: [T, N], the value V_t of what step t led to.
      gamma: scalar.
    """
    chex.assert_rank([reward, discount, last, next_value], 2)
    chex.assert_equal_shape([reward, discount, last, next_value])
    stop = last.at[-1].set(True)
    value = next_value
    for i in range(n_step):
        total = reward + gamma * discount * value
        if i + 1 < n_step:
            value = jnp.where(stop, next_value, jnp.roll(total, -1, axis=0))
    return total


RESCALING = 1e-3  # the linear part, which makes the function invertible by numbers of single precision


def rescale(value: Array) -> Array:
    """h(x) = sign(x) (√(|x| + 1) − 1) + ε x: small values keep their size, large ones grow like a square root
    (Pohlen et al. 2018)."""
    return jnp.sign(value) * (jnp.sqrt(jnp.abs(value) + 1.0) - 1.0) + RESCALING * value


def unrescale(value: Array) -> Array:
    """The inverse of `rescale`."""
    # with y = √(|x| + 1): ε y² + y = |h| + 1 + ε, solved in the form that does not subtract equal sizes
    total = jnp.abs(value) + 1.0 + RESCALING
    root = 2.0 * total / (1.0 + jnp.sqrt(1.0 + 4.0 * RESCALING * total))
    return jnp.sign(value) * (jnp.square(root) - 1.0)
