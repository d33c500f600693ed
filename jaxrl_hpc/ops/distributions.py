"""Action distributions as functions of a network's outputs.

A draw is stored `raw`: the category, or the Gaussian variable before it is mapped to the action's bounds.
Probabilities are always computed from the raw draw, so nothing has to be inverted:

    plain     a = clip(centre + scale x, low, high)  log p = log N(x; m, s) - sum log scale
    squashed  a = centre + scale tanh(x)             log p = log N(x; m, s) - sum log(scale (1 - tanh(x)^2))

The plain density is that of the action before clipping (values beyond a bound are handled by the
environment). log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2x)) is exact where tanh(x) rounds to one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.types import Array, EnvSpec

LOG_STD_RANGE = (-10.0, 2.0)


class Distribution(NamedTuple):
    """A family of distributions over actions. `outputs` are [..., num_outputs]."""

    num_outputs: int
    sample: Callable[[Array, Array], Array]  # (outputs [B, P], key [B]) -> raw [B, …]
    mode: Callable[[Array], Array]  # outputs -> raw
    log_prob: Callable[[Array, Array], Array]  # (outputs, raw) -> […]
    entropy: Callable[[Array, Array], Array]  # (outputs, key) -> […]; a one-draw estimate if squashed
    to_action: Callable[[Array], Array]  # raw -> the environment's action


def category(logits: Array, uniform: Array) -> Array:
    """Logits [B, A] and uniform numbers [B] -> categories [B]."""
    # through the inverse distribution function: half the random bits of Gumbel
    cumulative = jnp.cumsum(jax.nn.softmax(logits), axis=-1)
    below = cumulative <= uniform[:, None] * cumulative[:, -1:]
    return below.sum(axis=-1, dtype=jnp.int32)


def categorical(num_actions: int) -> Distribution:
    """Outputs are logits; raw is the action."""

    def sample(logits: Array, key: Array) -> Array:
        return category(logits, jax.vmap(jax.random.uniform)(key))

    def log_prob(logits: Array, raw: Array) -> Array:
        chex.assert_rank(logits, raw.ndim + 1)
        # a masked sum: its derivative is element-wise, that of a gather is a scatter
        taken = jnp.where(raw[..., None] == jnp.arange(num_actions), logits, 0.0).sum(axis=-1)
        return taken - jax.nn.logsumexp(logits, axis=-1)

    def entropy(logits: Array, key: Array) -> Array:
        del key
        return jax.nn.logsumexp(logits, axis=-1) - (jax.nn.softmax(logits) * logits).sum(axis=-1)

    def mode(logits: Array) -> Array:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)

    return Distribution(num_actions, sample, mode, log_prob, entropy, lambda raw: raw)


def multi_categorical(sizes: tuple[int, ...]) -> Distribution:
    """Independent choices: outputs are the logits of one after the other, raw is the action [..., parts]."""
    parts, ends = [categorical(size) for size in sizes], np.cumsum(sizes)[:-1]

    def each(logits: Array) -> list[tuple[Distribution, Array]]:
        return list(zip(parts, jnp.split(logits, ends, axis=-1), strict=True))

    def sample(logits: Array, key: Array) -> Array:
        uniform = jax.vmap(lambda k: jax.random.uniform(k, (len(sizes),)))(key)
        drawn = [category(own, uniform[:, i]) for i, (_, own) in enumerate(each(logits))]
        return jnp.stack(drawn, axis=-1)

    def log_prob(logits: Array, raw: Array) -> Array:
        return sum(
            (part.log_prob(own, raw[..., i]) for i, (part, own) in enumerate(each(logits))), jnp.float32(0)
        )

    def entropy(logits: Array, key: Array) -> Array:
        return sum((part.entropy(own, key) for part, own in each(logits)), jnp.float32(0))

    def mode(logits: Array) -> Array:
        return jnp.stack([part.mode(own) for part, own in each(logits)], axis=-1)

    return Distribution(sum(sizes), sample, mode, log_prob, entropy, lambda raw: raw)


def log_tanh_slope(raw: Array) -> Array:
    """log (1 - tanh(x)^2), summed over the last axis."""
    return (2.0 * (math.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))).sum(axis=-1)


def squashed_draw(outputs: Array, normal: Array) -> tuple[Array, Array]:
    """Actions in [-1, 1] from standard normal numbers [..., A], and their log-probabilities [...]; gradients
    of both flow to the outputs [..., 2 A], means and logarithms of standard deviations."""
    mean, log_std = jnp.split(outputs, 2, axis=-1)
    log_std = jnp.clip(log_std, *LOG_STD_RANGE)
    raw = mean + jnp.exp(log_std) * normal
    density = (-0.5 * normal**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(axis=-1)
    return jnp.tanh(raw), density - log_tanh_slope(raw)


def gaussian(low: np.ndarray, high: np.ndarray, squash: bool) -> Distribution:
    """Outputs are means and logarithms of standard deviations, raw is [..., *action_shape].

    A raw value of -1 … 1 covers low … high; without finite bounds raw is the action.
    """
    bounded = bool(np.all(np.isfinite(low)) and np.all(np.isfinite(high)))
    if squash and not bounded:
        raise ValueError("a squashed Gaussian needs finite action bounds; use distribution: gaussian")
    shape, size = low.shape, int(np.prod(low.shape))
    centre = (low + high) / 2 if bounded else np.zeros_like(low)
    scale = (high - low) / 2 if bounded else np.ones_like(low)
    log_scale = float(np.log(scale).sum())

    def split(outputs: Array) -> tuple[Array, Array]:
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        return mean, jnp.clip(log_std, *LOG_STD_RANGE)

    def shaped(flat: Array) -> Array:
        return flat.reshape(*flat.shape[:-1], *shape)

    def log_slope(flat: Array) -> Array:
        """log |d action / d raw|, summed over the action's parts."""
        if not squash:
            return jnp.full(flat.shape[:-1], log_scale)
        return log_tanh_slope(flat) + log_scale

    def sample(outputs: Array, key: Array) -> Array:
        mean, log_std = split(outputs)
        noise = jax.vmap(lambda k: jax.random.normal(k, (size,)))(key)
        return shaped(mean + jnp.exp(log_std) * noise)

    def log_prob(outputs: Array, raw: Array) -> Array:
        mean, log_std = split(outputs)
        flat = raw.reshape(mean.shape)
        standard = (flat - mean) * jnp.exp(-log_std)
        density = -0.5 * standard**2 - log_std - 0.5 * math.log(2 * math.pi)
        return density.sum(axis=-1) - log_slope(flat)

    def entropy(outputs: Array, key: Array) -> Array:
        mean, log_std = split(outputs)
        base = (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(axis=-1)
        if not squash:
            return base + log_scale
        drawn = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
        return base + log_slope(drawn)

    def to_action(raw: Array) -> Array:
        if squash:
            inside: Array = centre + scale * jnp.tanh(raw)
            return inside
        return jnp.clip(centre + scale * raw, low, high)

    return Distribution(2 * size, sample, lambda o: shaped(split(o)[0]), log_prob, entropy, to_action)


def for_spec(spec: EnvSpec, squash: bool) -> Distribution:
    """The family that suits the environment's actions."""
    if spec.num_actions is not None:
        return categorical(spec.num_actions)
    if spec.action_sizes:
        return multi_categorical(spec.action_sizes)
    assert spec.action_low is not None and spec.action_high is not None
    return gaussian(spec.action_low, spec.action_high, squash)
