"""From errors to priorities and importance weights.

    P(i) = p_i^alpha / sum_j p_j^alpha,   w_i = (1 / (M P(i)))^beta / max_j w_j

The weights are normalised by the largest of the batch, so M and the sum cancel:
w_i = (min_j p_j / p_i)^(alpha beta). beta goes from beta_start to beta_end with the run's progress.
"""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl_hpc.replay import sum_tree
from jaxrl_hpc.types import Array


def scaled(priority: Array, hypers: dict[str, Array]) -> Array:
    """(|p| + epsilon)^alpha, finite and positive for any input."""
    return sum_tree.clip((jnp.abs(priority) + hypers["epsilon"]) ** hypers["alpha"])


def weights(mass: Array, hypers: dict[str, Array], progress: Array) -> Array:
    """Importance weights [N] in (0, 1] from the priorities^alpha of the drawn windows; 0 if empty."""
    start, end = hypers["beta_start"], hypers["beta_end"]
    beta = start + (end - start) * jnp.clip(progress, 0.0, 1.0)
    drawn = mass > 0
    ratio = mass.min() / jnp.where(drawn, mass, 1.0)
    return jnp.where(drawn, ratio**beta, 0.0)
