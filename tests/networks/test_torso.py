"""What a network config may say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.networks.torso import NetworkConfig, ResidualCNN, make_torso
from jaxrl_hpc.types import EnvSpec


def test_kernels_of_each_layer():
    spec = EnvSpec("x", (84, 84, 4), np.dtype(np.uint8), 4, (), None, None, 10)
    config = NetworkConfig(filters=(16, 32), kernel=(8, 4), stride=(4, 2), hidden=(8,))
    network = make_torso(config, spec)
    params = network.init(jax.random.key(0), jnp.zeros((1, 84, 84, 4)))
    assert params["params"]["MLP_0"]["Dense_0"]["kernel"].shape == (9 * 9 * 32, 8)
    with pytest.raises(ValueError, match="kernel has 2 numbers for 1 filters"):
        NetworkConfig(kernel=(8, 4))


IMAGES = EnvSpec("x", (84, 84, 4), np.dtype(np.uint8), 4, (), None, None, 10)


@pytest.mark.parametrize(
    ("torso", "hidden", "features", "size"),
    [("nature", 512, 7 * 7 * 64, 1_684_128), ("impala", 256, 11 * 11 * 32, 1_089_232)],
)
def test_stacks_by_name_have_the_sizes_of_their_papers(torso, hidden, features, size):
    network = make_torso(NetworkConfig(torso=torso, hidden=(hidden,)), IMAGES)
    shapes = jax.eval_shape(network.init, jax.random.key(0), jnp.zeros((1, 84, 84, 4)))["params"]
    assert shapes["MLP_0"]["Dense_0"]["kernel"].shape == (features, hidden)
    assert sum(x.size for x in jax.tree.leaves(shapes)) == size
    with pytest.raises(ValueError, match=f"torso '{torso}' has filters, kernels and strides of its own"):
        NetworkConfig(torso=torso, filters=(8,))


def test_impalas_stack_is_made_of_xlas_convolutions():
    """Stages and blocks written again with XLA's padded convolution and reduction."""
    x = jax.random.normal(jax.random.key(0), (2, 3, 13, 10, 4))  # two leading axes, odd and even sides
    network = ResidualCNN((2, 3), (5,))
    params = network.init(jax.random.key(1), x)
    layers = iter(range(10))

    def convolve(x):
        kernel = params["params"][f"Convolution_{next(layers)}"]["kernel"]
        return jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    expected = x.reshape(6, 13, 10, 4)
    for _ in range(2):
        expected = convolve(expected)
        expected = jax.lax.reduce_window(expected, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for _ in range(2):
            expected = expected + convolve(jax.nn.relu(convolve(jax.nn.relu(expected))))
    dense = params["params"]["MLP_0"]["Dense_0"]["kernel"]
    expected = jax.nn.relu(jax.nn.relu(expected).reshape(6, -1) @ dense).reshape(2, 3, 5)
    np.testing.assert_allclose(network.apply(params, x), expected, atol=1e-5)


@pytest.mark.parametrize("torso", ["cnn", "nature", "impala"])
def test_every_image_torso_computes_in_the_type_that_is_asked_for(torso):
    """No product of float32 is left in what is lowered."""
    network = make_torso(NetworkConfig(torso=torso, hidden=(8,), dtype="bfloat16"), IMAGES)
    x = jax.ShapeDtypeStruct((1, 84, 84, 4), jnp.float32)
    params = jax.eval_shape(network.init, jax.random.key(0), x)
    exported = jax.export.export(jax.jit(network.apply))(params, x)
    lines = exported.mlir_module().splitlines()
    products = [line for line in lines if "stablehlo.dot_general" in line or "stablehlo.convolution" in line]
    assert products and all("bf16" in line for line in products)
