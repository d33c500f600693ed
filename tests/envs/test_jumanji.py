"""Jumanji's environments against the suite stepped by hand, where it is installed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.envs import jumanji as jumanji_env
from jaxrl_hpc.errors import UserError


def test_without_the_suite_it_is_a_sentence(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "jumanji", None)
    with pytest.raises(UserError, match=r"jumanji environments need Jumanji: pip install jumanji"):
        jumanji_env.make(jumanji_env.Config())


def test_steps_are_the_suites_own():
    jumanji = pytest.importorskip("jumanji")
    env = jumanji_env.make(jumanji_env.Config(id="Snake-v1", observation="grid"))
    assert env.spec.obs_shape == (12, 12, 5) and env.spec.num_actions == 4
    keys = jax.random.split(jax.random.key(0), 3)
    actions = jax.random.randint(jax.random.key(1), (80, 3), 0, 4)

    def one(state, action):
        return env.step(keys, state, action)

    state, first = env.reset(keys)
    _, steps = jax.jit(lambda s: jax.lax.scan(one, s, actions))(state)
    raw = jumanji.make("Snake-v1")
    reset, step = jax.jit(raw.reset), jax.jit(raw.step)
    ends = 0
    for copy in range(3):
        state, seen = reset(keys[copy])
        np.testing.assert_array_equal(first[copy], seen.observation.grid)
        for time in range(80):
            state, seen = step(state, actions[time, copy])
            np.testing.assert_array_equal(steps.final_obs[time, copy], seen.observation.grid)
            assert steps.reward[time, copy] == seen.reward
            assert steps.terminated[time, copy] == (seen.last() and seen.discount == 0)
            if seen.last():
                ends += 1
                state, seen = reset(keys[copy])
            np.testing.assert_array_equal(steps.obs[time, copy], seen.observation.grid)
    assert ends >= 3 and not steps.truncated.any()
    whole = jumanji_env.make(jumanji_env.Config(id="Snake-v1"))
    assert whole.spec.obs_shape == (12 * 12 * 5 + 1 + 4,) and whole.spec.obs_dtype == jnp.float32
    with pytest.raises(UserError, match=r"no Jumanji environment 'Snak-v1'; did you mean Snake-v1"):
        jumanji_env.make(jumanji_env.Config(id="Snak-v1"))
    with pytest.raises(UserError, match=r"has no part 'map'; it has grid, step_count, action_mask"):
        jumanji_env.make(jumanji_env.Config(observation="map"))
