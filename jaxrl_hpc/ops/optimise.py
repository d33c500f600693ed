"""Adam with traced step size, a linear learning-rate schedule and clipping by the global norm."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from jaxrl_hpc.schema import Schema, static, traced
from jaxrl_hpc.types import Array, PyTree


class OptimiserConfig(Schema):
    """Fields that every agent with a gradient shares."""

    learning_rate: float = traced(5e-4, "Adam step size", gt=0)
    learning_rate_final: float = traced(
        1.0, "the step size falls linearly to this fraction of itself over the run", ge=0, le=1
    )
    adam_epsilon: float = traced(1e-8, "Adam's denominator offset", gt=0)
    max_grad_norm: float = traced(10.0, "gradients are scaled down to this global norm; 0: never", ge=0)
    adam_beta1: float = static(0.9, "Adam's decay of the first moment", ge=0, lt=1)
    adam_beta2: float = static(0.999, "Adam's decay of the second moment", ge=0, lt=1)


def _adam(config: OptimiserConfig, hypers: dict[str, Array]) -> optax.GradientTransformation:
    return optax.scale_by_adam(config.adam_beta1, config.adam_beta2, eps=hypers["adam_epsilon"])


def init(config: OptimiserConfig, hypers: dict[str, Array], params: PyTree) -> PyTree:
    return _adam(config, hypers).init(params)


def clip_scale(grads: PyTree, max_norm: Array) -> tuple[Array, Array]:
    """(factor that brings grads to max_norm or less, global norm); max_norm 0 leaves them alone."""
    norm = optax.tree.norm(grads)
    limited = jnp.minimum(1.0, max_norm / jnp.maximum(norm, 1e-12))
    return jnp.where(max_norm > 0, limited, 1.0), norm


def update(
    config: OptimiserConfig,
    hypers: dict[str, Array],
    progress: Array,
    params: PyTree,
    opt: PyTree,
    grads: PyTree,
) -> tuple[PyTree, PyTree]:
    """One optimiser step -> (params, opt)."""
    scale, _ = clip_scale(grads, hypers["max_grad_norm"])
    grads = jax.tree.map(lambda g: g * scale, grads)
    updates, opt = _adam(config, hypers).update(grads, opt, params)
    remaining = 1.0 - progress * (1.0 - hypers["learning_rate_final"])
    rate = hypers["learning_rate"] * remaining
    params = jax.tree.map(lambda p, u: p - rate * u, params, updates)
    return params, opt
