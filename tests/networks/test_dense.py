"""The dense layer against flax's own, and its weight gradient against NumPy."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.networks.dense import Dense, half_product, hidden_dense, weight_gradient


@pytest.mark.parametrize(("inputs", "outputs"), [(5, 3), (3, 5), (4, 4), (7, 1)])
@pytest.mark.parametrize("lead", [(6,), (2, 3)])
def test_value_and_gradients_are_those_of_flax(inputs: int, outputs: int, lead: tuple[int, ...]) -> None:
    x = jax.random.normal(jax.random.key(0), (*lead, inputs))
    ours, flax = Dense(outputs), nn.Dense(outputs)
    params = ours.init(jax.random.key(1), x)
    assert jax.tree.structure(params) == jax.tree.structure(flax.init(jax.random.key(1), x))

    def loss(layer: nn.Module, params: object, x: jax.Array) -> jax.Array:
        return jnp.sin(layer.apply(params, x)).sum()

    for layer_gradient in (0, 1):  # with respect to the parameters, then to the input
        found, wanted = (
            jax.grad(lambda p, x, layer=layer: loss(layer, p, x), argnums=layer_gradient)(params, x)
            for layer in (ours, flax)
        )
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_weight_gradient_is_exact_on_integers() -> None:
    rng = np.random.default_rng(0)
    for inputs, outputs in ((8, 2), (2, 8)):
        x, dy = rng.integers(-9, 9, (16, inputs)), rng.integers(-9, 9, (16, outputs))
        found = jax.jit(weight_gradient)(jnp.float32(x), jnp.float32(dy))
        np.testing.assert_array_equal(found, x.T @ dy)


def test_no_product_contracts_over_rows_of_both_operands() -> None:
    """That is the slow one on CPUs; other platforms get the plain product."""
    layer, x = Dense(2), jnp.ones((32, 8))
    params = layer.init(jax.random.key(0), x)
    gradient = jax.jit(jax.grad(lambda p: layer.apply(p, x).sum()))
    assert "lhs_contracting_dims={0}" not in gradient.lower(params).compile().as_text()
    assert "optimization_barrier" in gradient.lower(params).as_text()
    assert "optimization_barrier" not in gradient.trace(params).lower(lowering_platforms=("cuda",)).as_text()


def test_many_seeds_at_once_equal_one() -> None:
    layer, x = Dense(3), jax.random.normal(jax.random.key(0), (4, 16, 5))
    params = jax.vmap(lambda key: layer.init(key, x[0]))(jax.random.split(jax.random.key(1), 4))

    def gradient(p: object, x: jax.Array) -> object:
        return jax.grad(lambda p: (layer.apply(p, x) ** 2).sum())(p)

    together = jax.jit(jax.vmap(gradient))(params, x)
    for i in range(4):
        alone = jax.jit(gradient)(jax.tree.map(lambda leaf, i=i: leaf[i], params), x[i])
        for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-5)


def test_mixed_precision_rounds_operands_and_adds_in_float32() -> None:
    """Against NumPy in float64 with operands rounded the same way."""
    rng = np.random.default_rng(0)
    x, weight, dy = (
        rng.standard_normal(shape).astype(np.float32) for shape in ((256, 40), (40, 8), (256, 8))
    )
    value, pullback = jax.vjp(half_product, x, weight)
    found = (value, *pullback(jnp.asarray(dy)))
    rx, rw, rdy = (np.asarray(jnp.asarray(a).astype(jnp.bfloat16), np.float64) for a in (x, weight, dy))
    for got, wanted in zip(found, (rx @ rw, rdy @ rw.T, rx.T @ rdy), strict=True):
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)  # bfloat16 sums would be off by 1e-2
    layer = hidden_dense(8, "bfloat16")
    params = layer.init(jax.random.key(0), x)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    text = jax.jit(jax.grad(lambda p: layer.apply(p, x).sum())).trace(params)
    text = text.lower(lowering_platforms=("cuda",)).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert products and all("bf16>" in line and "-> tensor<" in line for line in products)
    assert not [line for line in products if line.rstrip().endswith("bf16>")]
