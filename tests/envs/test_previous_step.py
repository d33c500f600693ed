"""Observations with the previous action and reward."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.envs import gymnax
from jaxrl_hpc.errors import UserError

COPIES = 3


def play(name: str, actions: jax.Array, **params):
    """Steps of the plain and of the wrapped environment, by the same keys."""
    plain, wrapped = (
        gymnax.make(gymnax.Config(name=name, params=params, previous_step=flag)) for flag in (False, True)
    )
    keys = jax.random.split(jax.random.key(0), COPIES)
    (state, _), (other, first) = plain.reset(keys), wrapped.reset(keys)
    pairs = []
    for number, action in enumerate(actions):
        keys = jax.random.split(jax.random.key(number + 1), COPIES)
        state, step = jax.jit(plain.step)(keys, state, action)
        other, longer = jax.jit(wrapped.step)(keys, other, action)
        pairs.append((step, longer))
    return wrapped.spec, first, pairs


def test_action_and_reward_follow_the_observation_and_start_again_with_the_episode() -> None:
    actions = jnp.tile(jnp.array([0, 1, 1]), (4, 1))
    spec, first, pairs = play("CartPole-v1", actions, max_steps_in_episode=3)
    assert spec.obs_shape == (4 + 2 + 1,)
    np.testing.assert_array_equal(first[:, 4:], 0)
    for number, (step, longer) in enumerate(pairs):
        shown = np.array([[1, 0, 1], [0, 1, 1], [0, 1, 1]])  # one-hot action, reward 1
        np.testing.assert_array_equal(longer.obs[:, :4], step.obs)
        np.testing.assert_array_equal(longer.final_obs, np.concatenate([step.final_obs, shown], axis=1))
        ended = number == 2  # by the time limit
        np.testing.assert_array_equal(longer.obs[:, 4:], 0 if ended else shown)


def test_continuous_actions_are_scaled_to_their_bounds() -> None:
    spec, _, [(step, longer)] = play("Pendulum-v1", jnp.array([[[-2.0], [0.0], [1.0]]]))
    assert spec.obs_shape == (3 + 1 + 1,)
    np.testing.assert_allclose(longer.obs[:, 3], [-1.0, 0.0, 0.5])
    np.testing.assert_array_equal(longer.obs[:, 4], step.reward)


def test_images_are_refused() -> None:
    with pytest.raises(UserError, match="vectors only"):
        gymnax.make(gymnax.Config(name="Breakout-MinAtar", previous_step=True))
