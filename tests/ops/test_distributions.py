"""Log-probabilities, entropies and draws against scipy and numerical integration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from jaxrl_hpc.ops import distributions

LOW, HIGH = np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)


def gaussian_outputs(seed: int, batch: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    mean, log_std = rng.normal(size=(batch, 2)), 0.5 * rng.normal(size=(batch, 2)) - 0.5
    return np.concatenate([mean, log_std], axis=-1).astype(np.float32)


def test_categorical_agrees_with_scipy():
    logits = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    action = np.arange(7) % 4
    family = distributions.categorical(4)
    probability = scipy.special.softmax(logits.astype(np.float64), axis=-1)
    np.testing.assert_allclose(
        family.log_prob(logits, action), np.log(probability[np.arange(7), action]), rtol=1e-5
    )
    entropy = [scipy.stats.entropy(p) for p in probability]
    np.testing.assert_allclose(family.entropy(logits, jax.random.key(0)), entropy, rtol=1e-5)
    np.testing.assert_array_equal(family.mode(logits), probability.argmax(-1))


def test_categorical_draws_have_the_right_frequencies():
    family = distributions.categorical(5)
    probability = np.array([0.5, 0.0, 0.3, 0.15, 0.05])
    logits = jnp.broadcast_to(jnp.log(probability + 1e-30), (20_000, 5))
    draws = np.asarray(family.sample(logits, jax.random.split(jax.random.key(1), 20_000)))
    counts = np.bincount(draws, minlength=5)
    assert counts[1] == 0
    seen = probability > 0
    assert scipy.stats.chisquare(counts[seen], 20_000 * probability[seen]).pvalue > 1e-3


def test_plain_gaussian_agrees_with_scipy_in_units_of_the_action():
    outputs = gaussian_outputs(2, 6)
    family = distributions.gaussian(LOW, HIGH, squash=False)
    raw = np.random.default_rng(3).normal(size=(6, 2)).astype(np.float32)
    centre, scale = (LOW + HIGH) / 2, (HIGH - LOW) / 2
    normal = scipy.stats.norm(centre + scale * outputs[:, :2], scale * np.exp(outputs[:, 2:]))
    expected = normal.logpdf(centre + scale * raw).sum(-1)
    np.testing.assert_allclose(family.log_prob(outputs, raw), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        family.entropy(outputs, jax.random.key(0)), normal.entropy().sum(-1), rtol=1e-4, atol=1e-4
    )
    np.testing.assert_allclose(family.to_action(raw), np.clip(centre + scale * raw, LOW, HIGH), rtol=1e-5)


def test_squashed_density_integrates_to_one_over_the_action():
    low, high = np.array([-1.0], np.float32), np.array([3.0], np.float32)
    family = distributions.gaussian(low, high, squash=True)
    outputs = jnp.array([0.3, -0.4])

    def density(action):
        raw = np.arctanh((action - 1.0) / 2.0)
        return float(jnp.exp(family.log_prob(outputs, jnp.array([raw]))))

    mass, _ = scipy.integrate.quad(density, -1 + 1e-6, 3 - 1e-6, limit=200, epsabs=1e-4)
    assert mass == pytest.approx(1.0, abs=2e-3)


def test_squashed_log_prob_agrees_with_a_change_of_variables_in_double_precision():
    outputs = gaussian_outputs(4, 8)
    raw = np.random.default_rng(5).normal(size=(8, 2)).astype(np.float32)
    family = distributions.gaussian(LOW, HIGH, squash=True)
    base = scipy.stats.norm(outputs[:, :2].astype(float), np.exp(outputs[:, 2:].astype(float))).logpdf(raw)
    slope = np.log((HIGH - LOW) / 2 * (1 - np.tanh(raw.astype(float)) ** 2))
    np.testing.assert_allclose(family.log_prob(outputs, raw), (base - slope).sum(-1), rtol=1e-4, atol=1e-4)
    action = np.asarray(family.to_action(raw))
    assert ((action > LOW) & (action < HIGH)).all()


def test_squashed_log_prob_is_finite_far_out():
    family = distributions.gaussian(LOW, HIGH, squash=True)
    raw = jnp.array([[30.0, -30.0]])
    assert jnp.isfinite(family.log_prob(jnp.zeros((1, 4)), raw)).all()
    assert jnp.isfinite(jax.grad(lambda r: family.log_prob(jnp.zeros((1, 4)), r).sum())(raw)).all()


def test_squashed_entropy_estimate_is_unbiased():
    family = distributions.gaussian(LOW, HIGH, squash=True)
    outputs = jnp.broadcast_to(jnp.array([0.5, -0.2, -0.3, 0.1]), (50_000, 4))
    estimate = np.asarray(family.entropy(outputs, jax.random.key(0)))
    raw = family.sample(outputs, jax.random.split(jax.random.key(1), 50_000))
    reference = -np.asarray(family.log_prob(outputs, raw))
    error = np.sqrt(estimate.var() / 50_000 + reference.var() / 50_000)
    assert abs(estimate.mean() - reference.mean()) < 4 * error


@pytest.mark.parametrize("squash", [False, True])
def test_gaussian_draws_are_normal(squash):
    family = distributions.gaussian(LOW, HIGH, squash)
    outputs = jnp.broadcast_to(jnp.array([0.5, -1.0, -0.3, 0.1]), (5_000, 4))
    raw = np.asarray(family.sample(outputs, jax.random.split(jax.random.key(2), 5_000)))
    for i, (mean, log_std) in enumerate([(0.5, -0.3), (-1.0, 0.1)]):
        assert scipy.stats.kstest(raw[:, i], scipy.stats.norm(mean, np.exp(log_std)).cdf).pvalue > 1e-3


def test_squashing_needs_bounds():
    with pytest.raises(ValueError, match="finite action bounds"):
        distributions.gaussian(np.array([-np.inf]), np.array([np.inf]), squash=True)
