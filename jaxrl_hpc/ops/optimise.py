"""Adam with traced step size, learning-rate schedules and clipping by the global norm.

    rate = learning_rate · min(1, p / warmup) · (1 − f(p) (1 − final)),   p: the elapsed fraction of the run

f(p) is p (linear) or (1 − cos πp) / 2 (cosine).
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import optax

from jaxrl_hpc.schema import AgentConfig, static, traced
from jaxrl_hpc.types import Array, PyTree


class OptimiserConfig(AgentConfig):
    """Fields that every agent with a gradient shares."""

    learning_rate: float = traced(5e-4, "Adam step size", gt=0)
    learning_rate_final: float = traced(
        1.0, "the step size decays to this fraction of its initial value over the run", ge=0, le=1
    )
    learning_rate_schedule: Literal["linear", "cosine"] = static(
        "linear", "shape of the decay of the step size"
    )
    learning_rate_warmup: float = traced(
        0.0, "fraction of the run, at its start, over which the step size rises linearly from 0", ge=0, lt=1
    )
    adam_epsilon: float = traced(1e-8, "Adam's denominator offset", gt=0)
    max_grad_norm: float = traced(10.0, "gradients are scaled down to this global norm; 0: never", ge=0)
    adam_beta1: float = static(0.9, "Adam's decay of the first moment", ge=0, lt=1)
    adam_beta2: float = static(0.999, "Adam's decay of the second moment", ge=0, lt=1)


def _adam(config: OptimiserConfig, hypers: dict[str, Array]) -> optax.GradientTransformation:
    return optax.scale_by_adam(config.adam_beta1, config.adam_beta2, eps=hypers["adam_epsilon"])


def init(config: OptimiserConfig, hypers: dict[str, Array], params: PyTree) -> PyTree:
    return _adam(config, hypers).init(params)


def of_params(grads: PyTree, like: PyTree) -> PyTree:
    """The gradients alone, without other data sent with them; `like` is the parameters' tree."""
    whole: bool = jax.tree.structure(grads) == jax.tree.structure(like)  # type: ignore[operator]
    return grads if whole else grads["params"]


def gradient_norm(grads: PyTree, params: PyTree) -> Array:
    """Global norm over all parameters, excluding other data sent with the gradients."""
    norm: Array = optax.tree.norm(of_params(grads, params))
    return norm


def clip_scale(grads: PyTree, max_norm: Array) -> Array:
    """The factor that brings grads to max_norm or less; max_norm 0 leaves them alone."""
    limited = jnp.minimum(1.0, max_norm / jnp.maximum(optax.tree.norm(grads), 1e-12))
    return jnp.where(max_norm > 0, limited, 1.0)


def rate(config: OptimiserConfig, hypers: dict[str, Array], progress: Array) -> Array:
    """The step size. The last iteration may exceed the budget, where the schedule has its final value."""
    over = jnp.clip(progress, 0.0, 1.0)
    fallen = over if config.learning_rate_schedule == "linear" else 0.5 * (1.0 - jnp.cos(jnp.pi * over))
    warm = jnp.minimum(1.0, over / jnp.maximum(hypers["learning_rate_warmup"], 1e-12))
    warm = jnp.where(hypers["learning_rate_warmup"] > 0, warm, 1.0)
    return hypers["learning_rate"] * warm * (1.0 - fallen * (1.0 - hypers["learning_rate_final"]))


def update(
    config: OptimiserConfig,
    hypers: dict[str, Array],
    progress: Array,
    params: PyTree,
    opt: PyTree,
    grads: PyTree,
) -> tuple[PyTree, PyTree]:
    """One optimiser step -> (params, opt)."""
    scale = clip_scale(grads, hypers["max_grad_norm"])
    grads = jax.tree.map(lambda g: g * scale, grads)
    updates, opt = _adam(config, hypers).update(grads, opt, params)
    size = rate(config, hypers, progress)
    params = jax.tree.map(lambda p, u: p - size * u, params, updates)
    return params, opt
