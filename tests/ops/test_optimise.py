"""Step sizes over a run, and clipping, against optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl_hpc.ops import optimise
from jaxrl_hpc.schema import traced_values


def settings(**changes):
    config = optimise.OptimiserConfig(**changes)
    return config, {name: jnp.float32(value) for name, value in traced_values(config).items()}


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("warmup", [0.0, 0.25])
def test_step_sizes(schedule, warmup):
    config, hypers = settings(
        learning_rate=2.0,
        learning_rate_final=0.2,
        learning_rate_schedule=schedule,
        learning_rate_warmup=warmup,
    )
    falling = {
        "linear": optax.linear_schedule(2.0, 0.4, 100),
        "cosine": optax.cosine_decay_schedule(2.0, 100, alpha=0.2),
    }[schedule]
    for percent in (0, 10, 50, 100, 103):  # the last iteration may pass the budget
        rising = min(1.0, percent / 100 / warmup) if warmup else 1.0
        found = optimise.rate(config, hypers, jnp.float32(percent / 100))
        np.testing.assert_allclose(found, falling(percent) * rising, rtol=1e-5, atol=1e-7)


def test_the_step_size_never_turns_round():
    config, hypers = settings(learning_rate_final=0.0)
    assert optimise.rate(config, hypers, jnp.float32(1.01)) == 0


@pytest.mark.parametrize("limit", [0.0, 0.5, 100.0])
def test_updates_are_those_of_optax(limit):
    config, hypers = settings(learning_rate=1e-2, adam_epsilon=1e-3, max_grad_norm=limit)
    clip = optax.clip_by_global_norm(limit) if limit else optax.identity()
    peer = optax.chain(clip, optax.adam(1e-2, eps=1e-3))
    params = {"a": jnp.ones((3, 2)), "b": jnp.arange(4.0)}
    expected, opt, peer_opt = params, optimise.init(config, hypers, params), peer.init(params)
    for seed in range(5):
        keys = jax.random.split(jax.random.key(seed), 2)
        grads = {"a": 3 * jax.random.normal(keys[0], (3, 2)), "b": 0.1 * jax.random.normal(keys[1], (4,))}
        params, opt = optimise.update(config, hypers, jnp.float32(0.5), params, opt, grads)
        updates, peer_opt = peer.update(grads, peer_opt, expected)
        expected = optax.apply_updates(expected, updates)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), params, expected)
