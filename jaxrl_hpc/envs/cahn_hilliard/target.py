"""Makes annealed.npz, the target structures S* of the environment.

    python -m jaxrl_hpc.envs.cahn_hilliard.target

S* is the mean over films of the structure at the end of a slow annealing run, three times as long as an
episode: T from 0.97, just below the transition, down to 0.8 in 90 equal stages of 67 solver steps.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.envs.cahn_hilliard.environment import TARGETS, first_field
from jaxrl_hpc.envs.cahn_hilliard.solver import advance, film
from jaxrl_hpc.envs.cahn_hilliard.structure import structure

FILMS, STAGES, SOLVER_STEPS = 16, 90, 67
FIRST, LAST = 0.97, 0.8
SIZES = (64, 128)


def annealed(size: int, films: int = FILMS) -> np.ndarray:
    """S* [200], float32."""

    @jax.jit
    def one(key: jax.Array) -> jax.Array:
        def stage(field: jax.Array, temperature: jax.Array) -> tuple[jax.Array, None]:
            return advance(field, film(temperature), SOLVER_STEPS), None

        temperatures = jnp.linspace(FIRST, LAST, STAGES)
        return structure(jax.lax.scan(stage, first_field(key, size), temperatures)[0])

    keys = jax.random.split(jax.random.key(2020), films)
    seen = np.stack([np.asarray(one(key), np.float64) for key in keys])
    return np.asarray(seen.mean(axis=0), np.float32)


if __name__ == "__main__":
    stored: dict[str, Any] = {str(size): annealed(size) for size in SIZES}
    np.savez(TARGETS, **stored)
    print(f"written to {TARGETS}")
