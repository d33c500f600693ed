"""Trees as flat buffers: what comes out is what went in, bit for bit, and layouts that differ are named."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_hpc.comm.buffers import ALIGNMENT, BufferLayout
from jaxrl_hpc.types import Transition

DTYPES = [np.bool_, np.uint8, np.int8, np.int32, np.uint32, np.float32, np.float16, jnp.bfloat16, np.int64]


@st.composite
def arrays(draw):
    """Any shape (also without elements), any dtype, any bits (also NaN)."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    seed = draw(st.integers(0, 2**32 - 1))
    count = int(np.prod(shape)) * dtype.itemsize
    raw = np.random.default_rng(seed).integers(0, 256, count, np.uint8)
    return (raw % 2 if dtype == np.bool_ else raw).view(dtype).reshape(shape)


trees = st.recursive(
    arrays(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


def bits(tree):
    return [
        (x.dtype, x.shape, np.ascontiguousarray(x).tobytes()) for x in map(np.asarray, jax.tree.leaves(tree))
    ]


@given(trees, st.booleans())
@settings(max_examples=100, deadline=None)
def test_what_comes_out_is_what_went_in(tree, junk_before):
    packing = BufferLayout.of(tree)
    buffer = packing.empty()
    buffer[:] = 255 if junk_before else 0
    packing.pack(tree, buffer)
    back = packing.unpack(buffer)
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    assert bits(back) == bits(tree)
    for leaf in jax.tree.leaves(back):
        assert not leaf.size or (np.shares_memory(leaf, buffer) and leaf.ctypes.data % ALIGNMENT == 0)


@given(trees)
@settings(max_examples=30, deadline=None)
def test_fields_do_not_overlap(tree):
    packing = BufferLayout.of(tree)
    ends = [leaf.offset + leaf.nbytes for leaf in packing.leaves]
    begins = [leaf.offset for leaf in packing.leaves]
    assert all(end <= begin for end, begin in zip(ends, begins[1:], strict=False))
    assert packing.nbytes >= max(ends, default=0) and packing.nbytes % ALIGNMENT == 0


@given(trees, trees)
@settings(max_examples=100, deadline=None)
def test_fingerprints_are_equal_exactly_if_layouts_are(one, other):
    first, second = BufferLayout.of(one), BufferLayout.of(other)
    assert (first.fingerprint == second.fingerprint) == (first.difference(second) is None)
    assert 0 <= first.fingerprint < 2**63


def test_shapes_of_a_program_and_its_results_have_one_layout():
    def program(key):
        zeros = jnp.zeros((4, 3))
        return {"key": key, "step": Transition(zeros, zeros[:, 0].astype(jnp.int32), *[zeros] * 5), "n": 3.0}

    key = jax.random.split(jax.random.key(1), 2)
    promised = BufferLayout.of(jax.eval_shape(program, key))
    result = jax.jit(program)(key)
    assert promised == BufferLayout.of(result)
    buffer = promised.empty()
    promised.pack(result, buffer)
    back = promised.unpack(buffer)
    assert jax.random.key_impl(back["key"]) == jax.random.key_impl(key)
    np.testing.assert_array_equal(jax.random.key_data(back["key"]), jax.random.key_data(key))
    assert isinstance(back["step"], Transition)


def test_other_shapes_dtypes_and_buffers_are_refused_by_name():
    packing = BufferLayout.of({"reward": np.zeros(3, np.float32)})
    with pytest.raises(ValueError, match=r"cannot pack \['reward'\] float64\[3\].*float32\[3\]"):
        packing.pack({"reward": np.zeros(3)}, packing.empty())
    with pytest.raises(ValueError, match=r"uint8\[64\] is needed, not uint8\[3\]"):
        packing.unpack(np.zeros(3, np.uint8))


class Communicator:
    """All that `agree` uses of one."""

    def __init__(self, *others):
        self.others = others

    def allgather(self, mine):
        return [mine, *((p.leaves, p.nbytes, p.fingerprint) for p in self.others)]


def test_ranks_that_disagree_are_named_with_the_leaf():
    mine, other = (
        BufferLayout.of({"a": np.zeros(2), "b": np.zeros(3)}),
        BufferLayout.of({"a": np.zeros(2), "b": np.zeros(4)}),
    )
    mine.agree(Communicator(mine, mine), "trajectories")
    with pytest.raises(ValueError) as error:
        mine.agree(Communicator(mine, other), "trajectories")
    assert "ranks 0 and 2 disagree on trajectories: ['b'] float64[3] against ['b'] float64[4]" in str(
        error.value
    )
