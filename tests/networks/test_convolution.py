"""Convolutions and their gradients against XLA's own, by the library and without it."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.networks import native
from jaxrl_hpc.networks.convolution import (
    Convolution,
    _plain_forward,
    _plain_inputs,
    _plain_weights,
    as_blocks,
    by_xla,
    convolve,
    layer,
)

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
    ours = Convolution(5, 4, 2)
    x = jax.random.normal(jax.random.key(0), (3, 2, 12, 12, 3))
    params = ours.init(jax.random.key(1), x)
    assert jax.tree.map(jnp.shape, params) == {"params": {"kernel": (4, 4, 3, 5), "bias": (5,)}}
    flat = ours.apply(params, x.reshape(6, 12, 12, 3))
    np.testing.assert_array_equal(ours.apply(params, x), flat.reshape(3, 2, 5, 5, 5))


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


def operands(side, kernel, stride, channels, filters, as_bytes=False, images=5):
    keys = jax.random.split(jax.random.key(0), 4)
    shape = (images, side, side, channels)
    x = jax.random.bits(keys[0], shape, jnp.uint8) if as_bytes else jax.random.normal(keys[0], shape)
    weights = jax.random.normal(keys[1], (kernel, kernel, channels, filters)) / 10
    bias = jax.random.normal(keys[2], (filters,))
    place = (side - kernel) // stride + 1
    return x, weights, bias, jax.random.normal(keys[3], (images, place, place, filters))


# of images of bytes, of floats whose sides are not used up, of many filters, of odd sides with stride 1
LAYERS = [
    (28, 8, 4, 4, 16, True),
    (21, 4, 2, 16, 32, False),
    (9, 3, 1, 32, 64, False),
    (11, 3, 3, 16, 48, False),
]
LEVELS = range(native.AVX2, native.level() + 1)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", LAYERS)
def test_passes_of_the_library_are_those_in_plain_operations(layout, level):
    x, weights, bias, dy = operands(*layout)
    for half in [False, True] if level == native.BFLOAT16 else [False]:
        settings = native.Settings(layout[2], 1 / 255 if layout[-1] else 1.0, half, level)
        passes = [
            (_plain_forward, "forward", (x, weights, bias), {}),
            (_plain_weights, "weights", (x, dy), {"side": layout[1]}),
        ]
        if not layout[-1]:
            passes.append((_plain_inputs, "inputs", (dy, weights), {"sides": x.shape[1:3]}))
        for plain, name, arguments, more in passes:
            found = native.one_pass(name, plain)(*arguments, settings=settings, **more)
            expected = plain(*arguments, settings=settings._replace(half=False), **more)
            scale = np.abs(expected).max()
            np.testing.assert_allclose(found, expected, atol=(1e-2 if half else 2e-6) * scale, err_msg=name)
            assert half == (np.abs(found - expected).max() > 1e-4 * scale)  # it does round where it should


@pytest.mark.skipif(not LEVELS, reason="the library is for processors with AVX2")
@pytest.mark.parametrize("as_bytes", [False, True])
def test_gradients_of_a_layer_by_the_library(as_bytes):
    x, weights, bias, dy = operands(20, 4, 2, 16, 32, as_bytes)
    floats = x / 255.0 if as_bytes else x

    def ours(weights, bias):
        return (layer(x, weights, bias, 2) * dy).sum()

    def plain(weights, bias):
        return ((by_xla(floats, weights, 2) + bias) * dy).sum()

    text = jax.jit(jax.grad(ours, (0, 1))).lower(weights, bias).as_text()
    assert native.PREFIX + "weights" in text and native.PREFIX + "inputs" not in text
    for mine, theirs in zip(
        jax.grad(ours, (0, 1))(weights, bias), jax.grad(plain, (0, 1))(weights, bias), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, atol=1e-5 * np.abs(theirs).max())
    if not as_bytes:
        mine, theirs = (
            jax.grad(lambda x, f=f: (f(x) * dy).sum())(x)
            for f in (lambda x: layer(x, weights, bias, 2), lambda x: by_xla(x, weights, 2))
        )
        np.testing.assert_allclose(mine, theirs, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.skipif(not LEVELS, reason="the library is for processors with AVX2")
def test_mapped_layers_and_exported_ones():
    x, weights, bias, _ = operands(12, 4, 2, 16, 16)
    several = jnp.stack([weights, 2 * weights])
    mapped = jax.vmap(lambda w: layer(x, w, bias, 2))(several)
    for row, kernel in zip(mapped, several, strict=True):
        np.testing.assert_array_equal(row, layer(x, kernel, bias, 2))
    exported = jax.export.export(jax.jit(lambda x: layer(x, weights, bias, 2)))(x)
    assert native.PREFIX not in exported.mlir_module()
    np.testing.assert_allclose(exported.call(x), layer(x, weights, bias, 2), atol=1e-4)


@pytest.mark.skipif(not LEVELS, reason="the library is for processors with AVX2")
def test_sums_do_not_depend_on_threads():
    script = """
import hashlib, sys
import jax, numpy as np
sys.path.insert(0, "tests/networks")
from test_convolution import _plain_weights, native, operands
x, _, _, dy = operands(20, 4, 2, 16, 32, images=50)
settings = native.Settings(2, 1.0, False, native.level())
found = native.one_pass("weights", _plain_weights)(x, dy, settings=settings, side=4)
print(hashlib.sha256(np.asarray(found).tobytes()).hexdigest())
"""
    root = Path(__file__).parents[2]
    found = [
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=root,
            env=os.environ | {"NPROC": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "3")
    ]
    assert found[0] == found[1] and len(found[0]) == 65


def test_an_image_smaller_than_the_kernel_never_reaches_the_library():
    """It would write to places that do not exist."""
    x, weights, bias, _ = operands(12, 8, 4, 16, 16)
    assert layer(x[:, :6, :6], weights, bias, 4).shape == (5, 0, 0, 16)
    with pytest.raises(UserError, match=r"network.torso: a kernel of 8 x 8 .* image of 12 x 6"):
        Convolution(16, 8, 4).init(jax.random.key(0), x[:, :, :6])
