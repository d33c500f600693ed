"""Collective operations of a job of one; tests/mpi has jobs of several."""

import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.comm.ranks import Ranks


def test_sums_of_trees_keep_structure_and_shapes():
    tree = {"a": jnp.arange(6.0).reshape(2, 3), "b": (jnp.int32(7), 0.5)}
    total = Ranks().add_trees(tree)
    assert total["a"].shape == (2, 3) and total["b"][0].shape == ()
    np.testing.assert_array_equal(total["a"], np.arange(6).reshape(2, 3))
    assert (float(total["b"][0]), float(total["b"][1])) == (7.0, 0.5)
    assert Ranks().add_trees(()) == ()
