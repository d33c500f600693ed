"""Network outputs for a return: its mean, or its distribution (Bellemare et al. 2017, Dabney et al.
2018), and the loss of each.

    value     one number Q per action                    huber(y - Q)
    c51       probabilities p of K fixed returns z       KL(Phi p' || p), where p' are those of y = r + g z
    quantile  K returns q_i at levels t_i = (i - 1/2)/K  mean_j sum_i |t_i - [y_j < q_i]| huber(y_j - q_i)

Phi divides the probability of a return between its two neighbours among z, which keeps the mean of returns
between z_1 and z_K. The KL divergence has the gradient of the cross entropy, and is a priority that is zero
where nothing is left to learn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxrl_hpc.ops.losses import huber, select_action
from jaxrl_hpc.types import Array

Kind = Literal["value", "c51", "quantile"]
Numbers = dict[str, Array]  # traced hyperparameters: return_low, return_high (c51), huber_delta (the others)


class ReturnModel(NamedTuple):
    """Interpretation of outputs [..., A, *K] as returns; K is absent where they are values."""

    value: Callable[[Array, Numbers], Array]  # outputs -> [..., A] expected returns
    loss: Callable[[Array, Array, Array, Array, Numbers], Array]
    # outputs of actions taken [N, *K], those of what follows, reward [N], discount [N] -> [N]


def support(low: Array, high: Array, count: int) -> Array:
    """z [K], from low to high."""
    return low + (high - low) * jnp.linspace(0.0, 1.0, count)


def project(returns: Array, weights: Array, onto: Array) -> Array:
    """Phi: weights [N, K] at returns [N, K] as weights [N, K] at `onto` [K], which is evenly spaced."""
    chex.assert_rank([returns, weights, onto], [2, 2, 1])
    low, high, spacing = onto[0], onto[-1], onto[1] - onto[0]
    distance = jnp.abs(jnp.clip(returns, low, high)[:, :, None] - onto) / spacing  # [N, from, to]
    return jnp.einsum("nj,njk->nk", weights, jnp.maximum(1.0 - distance, 0.0))


def quantile_loss(quantiles: Array, returns: Array, delta: Array) -> Array:
    """Quantile regression of samples: quantiles [N, K], returns [N, J] -> [N]."""
    chex.assert_rank([quantiles, returns], 2)
    levels = (jnp.arange(quantiles.shape[1]) + 0.5) / quantiles.shape[1]
    error = returns[:, None, :] - quantiles[:, :, None]  # [N, K, J]
    side = jnp.abs(levels[:, None] - (error < 0))
    return (side * huber(error, delta)).mean(axis=2).sum(axis=1)


def take(outputs: Array, action: Array) -> Array:
    """Outputs [N, A, *K] of the actions [N]."""
    if outputs.ndim == 2:
        return select_action(outputs, action)
    return jnp.take_along_axis(outputs, action[:, None, None], axis=1)[:, 0]


def make(kind: Kind, atoms: int) -> ReturnModel:
    """The model of that kind; `atoms` is K."""

    def value_loss(value: Array, following: Array, reward: Array, discount: Array, by: Numbers) -> Array:
        return huber(reward + discount * following - value, by["huber_delta"])

    def c51_value(logits: Array, by: Numbers) -> Array:
        return jax.nn.softmax(logits) @ support(by["return_low"], by["return_high"], atoms)

    def c51_loss(logits: Array, following: Array, reward: Array, discount: Array, by: Numbers) -> Array:
        z = support(by["return_low"], by["return_high"], atoms)
        goal = project(reward[:, None] + discount[:, None] * z, jax.nn.softmax(following), z)
        own = jax.scipy.special.xlogy(goal, goal).sum(axis=-1)
        return own - (goal * jax.nn.log_softmax(logits)).sum(axis=-1)

    def quantile_error(q: Array, following: Array, reward: Array, discount: Array, by: Numbers) -> Array:
        return quantile_loss(q, reward[:, None] + discount[:, None] * following, by["huber_delta"])

    if kind == "c51":
        return ReturnModel(c51_value, c51_loss)
    if kind == "quantile":
        return ReturnModel(lambda outputs, by: outputs.mean(axis=-1), quantile_error)
    return ReturnModel(lambda outputs, by: outputs, value_loss)
