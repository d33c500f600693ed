"""Noisy layers: the noise is the factorised one, of each row, and absent without a key."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.networks.heads import QNetwork
from jaxrl_hpc.networks.noisy import NoisyDense, factors
from jaxrl_hpc.networks.torso import MLP

X = jnp.asarray(np.random.default_rng(0).normal(size=(6, 5)), jnp.float32)


def test_rows_are_multiplied_with_noisy_weights() -> None:
    layer = NoisyDense(3, 0.5, 1.0)
    params = layer.init(jax.random.key(0), X, None)
    own = params["params"]
    np.testing.assert_allclose(own["kernel_noise"], 0.5 / 5**0.5, rtol=1e-6)
    own = own | {"kernel_noise": jnp.arange(15.0).reshape(5, 3) / 10, "bias_noise": jnp.arange(3.0)}
    kernel, bias = (np.asarray(own["Dense_0"][name]) for name in ("kernel", "bias"))
    np.testing.assert_allclose(layer.apply({"params": own}, X, None), X @ kernel + bias, rtol=1e-5, atol=1e-6)
    keys = jax.random.split(jax.random.key(1), 6)
    found = layer.apply({"params": own}, X, keys)
    for row, key in enumerate(keys):
        into, out_of = (np.asarray(f) for f in factors(key, 5, 3))
        weight = kernel + np.asarray(own["kernel_noise"]) * np.outer(into, out_of)
        expected = np.asarray(X)[row] @ weight + bias + np.asarray(own["bias_noise"]) * out_of
        np.testing.assert_allclose(found[row], expected, rtol=1e-4, atol=1e-5)
    together = layer.apply({"params": own}, X, keys[2])  # one key: one noise for all rows
    np.testing.assert_allclose(together[2], found[2], rtol=1e-5)


def test_factors_have_the_moments_of_the_paper() -> None:
    """f(e) has mean 0 and second moment E|e| = sqrt(2 / pi)."""
    into, out_of = factors(jax.random.split(jax.random.key(0), 2000), 6, 4)
    drawn = np.concatenate([into, out_of], axis=1)
    assert abs(drawn.mean()) < 0.02 and abs((drawn**2).mean() - (2 / np.pi) ** 0.5) < 0.02
    assert abs((into[:, 0] * out_of[:, 0]).mean()) < 0.1


def test_every_layer_of_a_head_has_noise_of_its_own() -> None:
    network = QNetwork(MLP((4,)), 2, dueling=True, stream_hidden=(4,), atoms=3, noise=0.5)
    params = network.init(jax.random.key(0), X)
    assert set(params["params"]) == {"torso", *(f"NoisyDense_{i}" for i in range(4))}
    plain, noisy = network.apply(params, X), network.apply(params, X, jax.random.key(1))
    assert plain.shape == noisy.shape == (6, 2, 3) and not np.allclose(plain, noisy)
    np.testing.assert_allclose(plain, network.apply(params, X), rtol=1e-6)
