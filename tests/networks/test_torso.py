"""Convolutions against XLA's own, and what a network config may say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.networks.torso import Convolution, NetworkConfig, as_blocks, make_torso
from jaxrl_hpc.types import EnvSpec


@pytest.mark.parametrize(("side", "kernel", "stride"), [(10, 3, 1), (84, 8, 4), (21, 4, 2), (11, 3, 2)])
def test_convolution_is_xlas(side, kernel, stride):
    """The same sums, with the weights in another order where strides make blocks."""
    filters, channels = 5, 3
    x = jax.random.normal(jax.random.key(0), (2, side, side, channels))
    layer = Convolution(filters, kernel, stride)
    params = layer.init(jax.random.key(1), x)
    weights = params["params"]["Dense_0"]["kernel"]
    if stride > 1 and kernel % stride == 0:
        blocks = kernel // stride
        weights = weights.reshape(blocks, blocks, stride, stride, channels, filters)
        weights = jnp.moveaxis(weights, 2, 1)  # row of blocks, row inside, column of blocks, column inside
    weights = weights.reshape(kernel, kernel, channels, filters)
    expected = jax.lax.conv_general_dilated(
        x, weights, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    np.testing.assert_allclose(layer.apply(params, x), expected, atol=2e-5)


def test_blocks_keep_every_pixel_inside():
    x = jnp.arange(7 * 6 * 2).reshape(7, 6, 2)
    blocks = as_blocks(x, 3)
    assert blocks.shape == (2, 2, 18)
    np.testing.assert_array_equal(blocks[1, 0], x[3:6, 0:3].reshape(-1))


def test_kernels_of_each_layer():
    spec = EnvSpec("x", (84, 84, 4), np.dtype(np.uint8), 4, (), None, None, 10)
    config = NetworkConfig(filters=(16, 32), kernel=(8, 4), stride=(4, 2), hidden=(8,))
    network = make_torso(config, spec)
    params = network.init(jax.random.key(0), jnp.zeros((1, 84, 84, 4)))
    assert params["params"]["MLP_0"]["Dense_0"]["kernel"].shape == (9 * 9 * 32, 8)
    with pytest.raises(ValueError, match="kernel has 2 numbers for 1 filters"):
        NetworkConfig(kernel=(8, 4))
