"""GAE and V-trace against rlax, and against plain NumPy loops where episodes end inside the unroll."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.ops import advantages

with warnings.catch_warnings():  # a dependency of rlax uses what JAX has deprecated
    warnings.simplefilter("ignore")
    import rlax

LENGTH, WIDTH = 11, 5


def unroll(seed: int, ends: bool = True) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    terminated = rng.random((LENGTH, WIDTH)) < 0.2 * ends
    truncated = np.logical_and(rng.random((LENGTH, WIDTH)) < 0.2 * ends, ~terminated)
    value = rng.normal(size=(LENGTH, WIDTH)).astype(np.float32)
    after = rng.normal(size=(LENGTH, WIDTH)).astype(np.float32)  # V of what each step led to
    last = terminated | truncated
    # within an episode, what a step led to is what the next one starts from
    after[:-1] = np.where(last[:-1], after[:-1], value[1:])
    return {
        "reward": rng.normal(size=(LENGTH, WIDTH)).astype(np.float32),
        "discount": 1.0 - terminated.astype(np.float32),
        "last": last,
        "value": value,
        "next_value": after,
    }


def oracle(data, log_rho, gamma, lambda_, rho_bar, c_bar):
    """Episode by episode, straight from the definition as a sum over later errors."""
    rho = np.exp(log_rho.astype(np.float64))
    reward, discount, last, value, after = (data[k].astype(np.float64) for k in data)
    error = reward + gamma * discount * after - value
    target, advantage = np.zeros_like(value), np.zeros_like(value)
    for b in range(value.shape[1]):
        for t in range(value.shape[0]):
            total, weight = 0.0, 1.0
            for k in range(t, value.shape[0]):
                total += weight * min(rho_bar, rho[k, b]) * error[k, b]
                weight *= gamma * lambda_ * min(c_bar, rho[k, b])
                if last[k, b]:
                    break
            target[t, b] = value[t, b] + total
    for b in range(value.shape[1]):
        for t in range(value.shape[0]):
            bootstrap = after[t, b]
            if t + 1 < value.shape[0] and not last[t, b]:
                bootstrap = lambda_ * target[t + 1, b] + (1 - lambda_) * value[t + 1, b]
            estimate = reward[t, b] + gamma * discount[t, b] * bootstrap
            advantage[t, b] = min(rho_bar, rho[t, b]) * (estimate - value[t, b])
    return advantage, target


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("lambda_", "rho_bar", "c_bar"), [(1.0, 1.0, 1.0), (0.9, 2.0, 0.7), (0.0, 1.0, 1.0)])
def test_vtrace_is_its_definition_with_episode_ends_inside(seed, lambda_, rho_bar, c_bar):
    data = unroll(seed)
    log_rho = np.random.default_rng(seed + 100).normal(size=(LENGTH, WIDTH)).astype(np.float32)
    found = advantages.vtrace(
        **data, log_rho=log_rho, gamma=0.97, lambda_=lambda_, rho_bar=rho_bar, c_bar=c_bar
    )
    advantage, target = oracle(data, log_rho, 0.97, lambda_, rho_bar, c_bar)
    np.testing.assert_allclose(found.value, target, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(found.advantage, advantage, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("lambda_", [1.0, 0.95, 0.0])
def test_gae_is_its_definition_with_episode_ends_inside(lambda_):
    data = unroll(7)
    found = advantages.gae(**data, gamma=0.9, lambda_=lambda_)
    advantage, target = oracle(data, np.zeros((LENGTH, WIDTH)), 0.9, lambda_, 1.0, 1.0)
    np.testing.assert_allclose(found.advantage, advantage, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(found.value, target, rtol=2e-5, atol=2e-5)


def test_gae_equals_rlax():
    data = unroll(1)
    data["discount"] = data["discount"] * (1 - data["last"])  # rlax knows terminations only
    found = advantages.gae(**data, gamma=0.9, lambda_=0.8)
    values = np.concatenate([data["value"], data["next_value"][-1:]])
    expected = jax.vmap(rlax.truncated_generalized_advantage_estimation, (1, 1, None, 1), 1)(
        data["reward"], 0.9 * data["discount"], 0.8, values
    )
    np.testing.assert_allclose(found.advantage, expected, rtol=1e-5, atol=1e-5)


def test_vtrace_equals_rlax():
    data = unroll(2)
    data["discount"] = data["discount"] * (1 - data["last"])
    log_rho = np.random.default_rng(3).normal(size=(LENGTH, WIDTH)).astype(np.float32)
    found = advantages.vtrace(**data, log_rho=log_rho, gamma=0.9, lambda_=0.8, rho_bar=1.5, c_bar=1.0)
    expected = jax.vmap(
        lambda v, w, r, d, rho: rlax.vtrace_td_error_and_advantage(v, w, r, d, rho, 0.8, 1.5, 1.5), 1, 1
    )(data["value"], data["next_value"], data["reward"], 0.9 * data["discount"], jnp.exp(log_rho))
    np.testing.assert_allclose(found.value - data["value"], expected.errors, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.advantage, expected.pg_advantage, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_next_values_come_from_the_next_row_or_the_observation_before_the_reset(share):
    rng = np.random.default_rng(4)
    truncated = rng.random((LENGTH, WIDTH)) < share
    discount = (rng.random((LENGTH, WIDTH)) < 0.9).astype(np.float32)
    last = np.logical_or(truncated, discount == 0)
    value = rng.normal(size=(LENGTH, WIDTH)).astype(np.float32)
    rows = {"next_obs": rng.normal(size=(LENGTH, WIDTH, 3)).astype(np.float32)}
    found = jax.jit(
        lambda v, d, last, rows: advantages.next_values(v, d, last, rows, lambda r: r["next_obs"].sum(-1))
    )(value, discount, last, rows)
    expected = rows["next_obs"].sum(-1)
    expected[:-1] = np.where(last[:-1], expected[:-1], value[1:])
    counts = discount > 0  # where an episode terminated any number will do: it is multiplied by zero
    np.testing.assert_allclose(np.asarray(found)[counts], expected[counts], rtol=1e-5, atol=1e-6)
    assert np.isfinite(found).all()


def test_next_values_give_no_gradient():
    value = jnp.ones((3, 2))
    last = jnp.zeros((3, 2), bool).at[1].set(True)

    def total(weight):
        rows = jnp.ones((3, 2)) * weight
        return advantages.next_values(value * weight, jnp.ones((3, 2)), last, rows, lambda r: r * 2.0).sum()

    assert jax.grad(total)(1.0) == 0.0
