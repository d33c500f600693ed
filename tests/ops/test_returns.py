"""Rescaled values: the function, and that its inverse is one."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.ops.returns import rescale, unrescale


def test_rescaling_is_a_square_root_with_a_linear_part() -> None:
    found = rescale(jnp.array([0.0, 3.0, -3.0, 99.0]))
    np.testing.assert_allclose(found, [0.0, 1.003, -1.003, 9.099], rtol=1e-6)


def test_its_inverse_gives_back_values_of_any_size() -> None:
    sizes = jnp.logspace(-3, 6, 50)
    values = jnp.concatenate([-sizes, jnp.zeros(1), sizes])
    np.testing.assert_allclose(unrescale(rescale(values)), values, rtol=2e-4, atol=1e-6)
