"""Convolutions and their gradients against XLA's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.networks.convolution import Convolution, as_blocks, by_xla, convolve

SIZES = [(10, 3, 1), (84, 8, 4), (21, 4, 2), (11, 3, 2), (9, 4, 4)]  # side of the image, kernel, stride


@pytest.mark.parametrize(("side", "kernel", "stride"), SIZES)
def test_values_and_gradients_are_xlas(side, kernel, stride):
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (2, side, side, 3))
    weights = jax.random.normal(keys[1], (kernel, kernel, 3, 5))
    ours, our_gradients = jax.vjp(lambda x, w: convolve(x, w, stride), x, weights)
    expected, gradients = jax.vjp(lambda x, w: by_xla(x, w, stride), x, weights)
    np.testing.assert_allclose(ours, expected, atol=1e-4)
    dy = jax.random.normal(keys[2], expected.shape)
    for mine, theirs in zip(our_gradients(dy), gradients(dy), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5 * np.abs(theirs).max())


def test_layer_has_the_parameters_of_flax_and_any_leading_axes():
    layer = Convolution(5, 4, 2)
    x = jax.random.normal(jax.random.key(0), (3, 2, 12, 12, 3))
    params = layer.init(jax.random.key(1), x)
    assert jax.tree.map(jnp.shape, params) == {"params": {"kernel": (4, 4, 3, 5), "bias": (5,)}}
    flat = layer.apply(params, x.reshape(6, 12, 12, 3))
    np.testing.assert_array_equal(layer.apply(params, x), flat.reshape(3, 2, 5, 5, 5))


def test_no_convolution_of_xla_in_the_backward_pass():
    """Inside loops on CPUs it would take ten times as long; one is left, the forward pass."""

    def loss(weights, x):
        return jnp.square(convolve(x, weights, 4)).sum()

    x, weights = jnp.ones((2, 84, 84, 4)), jnp.ones((8, 8, 4, 16))
    text = jax.jit(jax.grad(loss)).lower(weights, x).compile().as_text()
    assert text.count(" convolution(") == 1


def test_blocks_keep_every_pixel_inside():
    x = jnp.arange(7 * 6 * 2).reshape(1, 7, 6, 2)
    blocks = as_blocks(x, 3)
    assert blocks.shape == (1, 2, 2, 18)
    np.testing.assert_array_equal(blocks[0, 1, 0], x[0, 3:6, 0:3].reshape(-1))


def test_mixed_precision_is_near_and_leaves_parameters_alone():
    x = jax.random.normal(jax.random.key(0), (3, 12, 12, 3))
    plain, half = Convolution(5, 4, 2), Convolution(5, 4, 2, "bfloat16")
    params = half.init(jax.random.key(1), x)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    exact, rounded = plain.apply(params, x), half.apply(params, x)
    assert rounded.dtype == jnp.float32 and (exact != rounded).any()
    np.testing.assert_allclose(exact, rounded, atol=0.05)
