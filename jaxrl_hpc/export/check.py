"""Compare an exported policy with the agent it came from, on random observations."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.export import loader
from jaxrl_hpc.export.program import PolicyFunctions
from jaxrl_hpc.types import EnvSpec

BATCH, STEPS = 64, 4
TOLERANCE = 1e-4  # of actions; programs of another batch size round differently


def random_observations(spec: EnvSpec, generator: np.random.Generator, batch: int) -> np.ndarray:
    """[batch, *obs_shape] of the right type: normal, or small whole numbers."""
    shape, dtype = (batch, *spec.obs_shape), np.dtype(spec.obs_dtype)
    if np.issubdtype(dtype, np.floating):
        return generator.normal(size=shape).astype(dtype)
    return generator.integers(0, 2, size=shape).astype(dtype)


def check(folder: Path, acting: PolicyFunctions) -> None:
    """RuntimeError unless both act alike over a few steps, memory included."""
    policy = loader.load(folder)
    generator = np.random.default_rng(0)
    carry, own = None, acting.agent.carry(jnp.arange(BATCH, dtype=jnp.int32))
    keys = jax.vmap(jax.random.key)(jnp.arange(BATCH))
    act = jax.jit(acting.agent.act, static_argnums=4)
    for _ in range(STEPS):
        obs = random_observations(acting.spec, generator, BATCH)
        action, carry = policy.act(obs, carry)
        expected, own, _ = act(acting.params, own, obs, keys, True)
        close = np.isclose(action, expected, rtol=TOLERANCE, atol=TOLERANCE)
        if close.mean() < 0.99:  # two nearly equal values may swap
            raise RuntimeError(f"{folder}: the exported policy does not act as the original; this is a bug")
