"""Losses of return distributions against rlax, against a plain loop, and by what they must keep."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.ops import value_distributions

with warnings.catch_warnings():  # a dependency of rlax uses what JAX has deprecated
    warnings.simplefilter("ignore")
    import rlax

BY = {"return_low": jnp.float32(-2.0), "return_high": jnp.float32(3.0), "huber_delta": jnp.float32(0.7)}


def numbers(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape), jnp.float32)


def test_projection_is_that_of_rlax_and_keeps_mass_and_mean() -> None:
    z = value_distributions.support(*(BY[name] for name in ("return_low", "return_high")), 11)
    np.testing.assert_allclose(z, np.linspace(-2, 3, 11), rtol=1e-6)
    returns, weights = 0.5 + 0.6 * numbers(6, 11), jax.nn.softmax(numbers(6, 11))
    found = value_distributions.project(returns, weights, z)
    order = jnp.argsort(returns, axis=1)  # rlax wants them sorted
    expected = jax.vmap(rlax.categorical_l2_project, in_axes=(0, 0, None))(
        jnp.take_along_axis(returns, order, 1), jnp.take_along_axis(weights, order, 1), z
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-5)
    inside = (weights * jnp.clip(returns, -2, 3)).sum(axis=1)
    np.testing.assert_allclose(found @ z, inside, rtol=1e-4)


def test_projection_by_hand() -> None:
    z = jnp.array([0.0, 1.0, 2.0])
    found = value_distributions.project(jnp.array([[0.25, 1.0, 9.0]]), jnp.array([[0.4, 0.1, 0.5]]), z)
    np.testing.assert_allclose(found, [[0.3, 0.2, 0.5]], rtol=1e-6)


def test_c51_is_the_divergence_from_the_projected_target() -> None:
    model = value_distributions.make("c51", 11)
    logits, following, reward = numbers(5, 11), numbers(5, 11) * 2, numbers(5)
    discount = jnp.array([0.9, 0.0, 0.5, 0.9, 1.0])
    z = np.linspace(-2, 3, 11)
    losses = model.loss(logits, following, reward, discount, BY)
    for i in range(5):
        goal = rlax.categorical_l2_project(
            jnp.asarray(reward[i] + discount[i] * z, jnp.float32),
            jax.nn.softmax(following[i]),
            jnp.asarray(z),
        )
        mine = np.asarray(jax.nn.softmax(logits[i]), np.float64)
        goal = np.asarray(goal, np.float64)
        kept = goal > 0
        divergence = (goal[kept] * np.log(goal[kept] / mine[kept])).sum()
        np.testing.assert_allclose(losses[i], divergence, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.value(logits, BY), np.asarray(jax.nn.softmax(logits)) @ z, rtol=1e-4)
    same = model.loss(following, following, jnp.zeros(5), jnp.ones(5), BY)
    np.testing.assert_allclose(same, 0.0, atol=1e-5)


def test_gradients_of_c51_are_finite_where_the_target_is_certain() -> None:
    model = value_distributions.make("c51", 11)
    certain = jnp.full((2, 11), -1e4).at[:, 3].set(0.0)
    grads = jax.grad(lambda x: model.loss(x, certain, jnp.zeros(2), jnp.ones(2), BY).sum())(numbers(2, 11))
    assert np.isfinite(grads).all()


@pytest.mark.parametrize("terminal", [False, True])
def test_quantile_loss_is_that_of_rlax(terminal: bool) -> None:
    model = value_distributions.make("quantile", 7)
    q, following, reward = numbers(4, 7), numbers(4, 7) * 3, numbers(4)
    discount = jnp.full(4, 0.0 if terminal else 0.9)
    losses = model.loss(q, following, reward, discount, BY)
    levels = (jnp.arange(7) + 0.5) / 7
    for i in range(4):
        # rlax: of one state, the distribution of the only action
        error = rlax.quantile_q_learning(
            q[i][:, None], levels, jnp.int32(0), reward[i], discount[i], following[i][:, None],
            following[i][:, None], 0.7,
        )  # fmt: skip
        np.testing.assert_allclose(losses[i], error, rtol=1e-4)
    np.testing.assert_allclose(model.value(q, BY), np.asarray(q).mean(axis=-1), rtol=1e-5)


def test_quantiles_of_samples_are_found() -> None:
    """Where the loss is least, q are the quantiles (delta small: almost absolute errors)."""
    samples = jnp.linspace(0.0, 1.0, 1001)[None]
    step = jax.jit(jax.grad(lambda q: value_distributions.quantile_loss(q, samples, jnp.float32(1e-3))[0]))
    q = jnp.zeros((1, 4))
    for _ in range(400):
        q = q - 50.0 * step(q)
    np.testing.assert_allclose(q[0], [0.125, 0.375, 0.625, 0.875], atol=0.01)


def test_outputs_of_actions() -> None:
    outputs, action = numbers(5, 3, 7), jnp.array([0, 2, 1, 1, 0])
    np.testing.assert_array_equal(
        value_distributions.take(outputs, action), np.asarray(outputs)[np.arange(5), np.asarray(action)]
    )
    np.testing.assert_array_equal(
        value_distributions.take(outputs[..., 0], action),
        np.asarray(outputs)[np.arange(5), np.asarray(action), 0],
    )
