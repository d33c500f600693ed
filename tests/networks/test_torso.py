"""What a network config may say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.networks.torso import NetworkConfig, make_torso
from jaxrl_hpc.types import EnvSpec


def test_kernels_of_each_layer():
    spec = EnvSpec("x", (84, 84, 4), np.dtype(np.uint8), 4, (), None, None, 10)
    config = NetworkConfig(filters=(16, 32), kernel=(8, 4), stride=(4, 2), hidden=(8,))
    network = make_torso(config, spec)
    params = network.init(jax.random.key(0), jnp.zeros((1, 84, 84, 4)))
    assert params["params"]["MLP_0"]["Dense_0"]["kernel"].shape == (9 * 9 * 32, 8)
    with pytest.raises(ValueError, match="kernel has 2 numbers for 1 filters"):
        NetworkConfig(kernel=(8, 4))
