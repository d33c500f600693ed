"""The environment: spaces, observations, rewards, ends, baseline, starts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import ValidationError

from jaxrl_hpc.envs.exabooster import (
    INFO_KEYS,
    ExaBoosterConfig,
    actions,
    channels,
    generator,
    make,
    summarise,
)
from jaxrl_hpc.envs.exabooster.episodes import record_episode

CONTINUOUS = "ExaBoosterContinuous-v0"
SMALL = {"bank_size": 64}


def _first(env, params, seed=0):
    return env.reset_env(jax.random.key(seed), params)


def _rows(state):
    return np.asarray(state.window).reshape(-1, 5)


def test_spaces_and_step():
    env, params = make(ExaBoosterConfig(**SMALL))
    obs, state = env.reset(jax.random.key(0), params)
    assert env.action_space(params).n == env.num_actions == 30
    assert obs.shape == env.observation_space(params).shape == (75,) and obs.dtype == jnp.float32
    obs, state, reward, terminated, truncated, info = env.step(jax.random.key(1), state, 14, params)
    assert float(reward) == pytest.approx(-float(info["abs_error"]))
    assert set(INFO_KEYS) <= set(info) and not terminated and not truncated
    np.testing.assert_array_equal(info["final_observation"], obs)


def test_the_regulators_own_actions_reproduce_the_shadow():
    """An agent that sends what the regulator sends has the regulator's errors: same noise, same order."""
    env, params = make(ExaBoosterConfig(name=CONTINUOUS, delta_max=0.5, **SMALL))
    _, state = _first(env, params)
    step = jax.jit(env.step_env)
    for t in range(60):
        v, _ = generator.regulate(generator.measured(state.shadow.error), state.beta)
        action = (state.machine.set_point + v - state.agent.vimin) / 0.5
        _, state, _, _, info = step(jax.random.fold_in(jax.random.key(5), t), state, action[None], params)
        assert float(state.agent.error) == pytest.approx(float(state.shadow.error), abs=2e-5)
    assert float(info["improvement"]) == pytest.approx(1.0, abs=1e-3)


def test_an_action_answers_after_three_ticks():
    env, params = make(ExaBoosterConfig(name=CONTINUOUS, delta_max=0.01, **SMALL))
    _, state = _first(env, params)
    step = jax.jit(env.step_env)
    raised = held = state
    difference = []
    for t in range(5):
        key = jax.random.fold_in(jax.random.key(2), t)
        _, raised, *_ = step(key, raised, jnp.array([1.0 if t == 0 else 0.0]), params)
        _, held, *_ = step(key, held, jnp.array([0.0]), params)
        difference.append(float(raised.agent.error - held.agent.error))
    expected = [0, 0, 0.033, 0.86 * 0.033 + 0.033 + 0.008]
    np.testing.assert_allclose(difference[:4], expected, atol=1e-5)


def test_observation_rows():
    env, params = make(ExaBoosterConfig(**SMALL))
    _, state = _first(env, params)
    before = _rows(state)
    key, action = jax.random.key(3), 29
    obs, after, *_ = env.step_env(key, state, action, params)
    rows = np.asarray(obs).reshape(15, 5)
    np.testing.assert_array_equal(rows[:-1], before[1:])
    vimin = rows[-1, 0] * 0.033 + channels.VIMIN_CENTRE
    sent = float(state.agent.vimin) + channels.VIMIN_CENTRE + 0.0225
    assert vimin == pytest.approx(sent, abs=1e-5)
    assert rows[-1, 1] * 0.21 == pytest.approx(float(generator.measured(after.agent.error)), abs=1e-6)
    assert rows[-1, 4] * 2400 + 3300 == pytest.approx(generator.MDAT40[int(after.machine.phase)], abs=0.01)


def test_stack_is_standardised():
    _, params = make(ExaBoosterConfig())
    last = np.asarray(params.bank.window)[:, -5:]
    assert np.abs(last.mean(axis=0)).max() < 0.15
    # VIMIN's unit also covers the slow changes that a start of 300 ticks has not seen
    np.testing.assert_allclose(last.std(axis=0), [0.84, 1, 1, 1, 1], atol=0.05)


def test_compat_observation_is_min_max_of_the_last_row():
    env, params = make(ExaBoosterConfig(observation="compat", **SMALL))
    obs, state = _first(env, params)
    physical = _rows(state)[-1] * channels.SCALE + channels.CENTRE
    expected = (physical - channels.MINIMUM) / (channels.MAXIMUM - channels.MINIMUM)
    assert obs.shape == env.observation_space(params).shape == (5,)
    np.testing.assert_allclose(obs, expected, atol=1e-4)


@pytest.mark.parametrize(
    "reward,function", [("exp", lambda e: np.exp(-5 * e)), ("exp_minus_one", lambda e: np.exp(-5 * e) - 1)]
)
def test_other_rewards(reward, function):
    env, params = make(ExaBoosterConfig(reward=reward, **SMALL))
    _, state = _first(env, params)
    _, state, value, _, info = env.step_env(jax.random.key(1), state, 3, params)
    assert float(value) == pytest.approx(function(float(info["abs_error"])), abs=1e-6)
    expected = function(float(info["regulator_abs_error"]))
    assert float(info["regulator_return"]) == pytest.approx(expected, abs=1e-6)


def test_losing_control_ends_with_the_penalty():
    env, params = make(ExaBoosterConfig(**SMALL))
    _, state = _first(env, params)
    step = jax.jit(env.step)
    for t in range(100):
        key = jax.random.fold_in(jax.random.key(1), t)
        _, state, reward, terminated, truncated, info = step(key, state, 29, params)
        if terminated:
            break
        assert reward == -info["abs_error"]
    assert terminated and not truncated and t < 40
    assert float(info["abs_error"]) >= 2
    assert float(reward) == pytest.approx(-float(info["abs_error"]) - 5 * (100 - (t + 1)))
    assert int(state.time) == 0 and float(state.abs_error) == 0  # reset


@pytest.mark.parametrize("horizon", [1, 20])
def test_horizon_truncates(horizon):
    env, params = make(ExaBoosterConfig(horizon=horizon, **SMALL))
    _, state = env.reset(jax.random.key(0), params)
    for t in range(horizon):
        key = jax.random.fold_in(jax.random.key(1), t)
        _, state, _, terminated, truncated, _ = env.step(key, state, 14, params)
        assert bool(truncated) == (t == horizon - 1) and not terminated


def test_vimin_is_clipped():
    env, params = make(ExaBoosterConfig(name=CONTINUOUS, delta_max=0.5, **SMALL))
    _, state = _first(env, params)
    for action, bound in ((1.0, channels.VIMIN_HIGH), (-3.0, channels.VIMIN_LOW)):
        _, after, *_ = env.step_env(jax.random.key(0), state, jnp.array([action]), params)
        assert float(after.agent.vimin) + channels.VIMIN_CENTRE == pytest.approx(bound, abs=1e-5)


def test_legacy_exit_has_no_penalty():
    env, params = make(ExaBoosterConfig(legacy=True, name=CONTINUOUS, delta_max=0.5, **SMALL))
    _, state = _first(env, params, seed=1)
    assert float(state.vimin_low) < float(state.agent.vimin) < float(state.vimin_high)
    for target, ends in ((state.vimin_high + 1e-4, True), (state.vimin_low - 1e-4, True), (0.0, False)):
        change = target - state.agent.vimin if ends else 0.0
        _, _, reward, terminated, info = env.step_env(
            jax.random.key(0), state, jnp.array([change / 0.5]), params
        )
        assert bool(terminated) is ends and float(reward) == -float(info["abs_error"])


def test_fixed_start():
    env, params = make(ExaBoosterConfig(fixed_start=True, **SMALL))
    one, other = (_first(env, params, seed)[0] for seed in (0, 1))
    np.testing.assert_array_equal(one, other)
    env, params = make(ExaBoosterConfig(**SMALL))
    one, other = (_first(env, params, seed)[0] for seed in (0, 1))
    assert np.abs(one - other).max() > 0.01


def test_starts_are_drawn_uniformly():
    env, params = make(ExaBoosterConfig(**SMALL))
    keys = jax.random.split(jax.random.key(0), 6400)
    _, state = jax.vmap(env.reset_env, (0, None))(keys, params)
    _, counts = np.unique(np.asarray(state.agent.error), return_counts=True)
    assert len(counts) == 64
    assert ((counts - 100.0) ** 2 / 100).sum() < 110  # chi-squared with 63 degrees of freedom, p < 0.001


def test_domain_randomisation_mixes_the_plants():
    env, params = make(ExaBoosterConfig(domain_randomisation=True, bank_size=96))
    assert [int(n) for n in np.bincount(params.bank.plant)] == [32, 32, 32]
    _, state = _first(env, params)
    for index, plant in enumerate(generator.PLANTS):
        chosen = env.plant(state.replace(plant=jnp.int32(index)), params)
        assert float(chosen.gain_2) == pytest.approx(plant.gain_2)


@pytest.mark.parametrize("fit", [1, 2])
def test_other_fits(fit):
    env, params = make(ExaBoosterConfig(fit=fit, **SMALL))
    _, state = _first(env, params)
    assert float(env.plant(state, params).pole) == pytest.approx(generator.PLANTS[fit].pole)


def test_random_actions_lose_control_in_most_episodes():
    env, params = make(ExaBoosterConfig())

    def episode(key):
        reset_key, key = jax.random.split(key)

        def step(state, key):
            action_key, step_key = jax.random.split(key)
            action = jax.random.randint(action_key, (), 0, 30)
            _, state, _, terminated, _ = env.step_env(step_key, state, action, params)
            return state, terminated

        return jax.lax.scan(step, env.reset_env(reset_key, params)[1], jax.random.split(key, 100))[1].any()

    lost = jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), 2048)).mean()
    assert float(lost) == pytest.approx(0.76, abs=0.04)


def test_summarise_adds_before_dividing():
    sums = {"abs_error": np.array([1.0, 3.0]), "regulator_abs_error": np.array([4.0, 4.0])}
    assert summarise(sums)["improvement"] == 2.0  # the mean of ratios would say 2.67


def test_record_episode():
    env, params = make(ExaBoosterConfig(**SMALL))
    episode = record_episode(env, params, lambda carry, obs, key: (jnp.int32(14), carry), jax.random.key(0))
    assert len(episode.seconds) == 101 and episode.seconds[15] == pytest.approx(1.0)
    assert np.ptp(episode.vimin) == 0 and np.ptp(episode.regulator_vimin) > 0.01
    assert episode.iminer[0] == episode.regulator_iminer[0]
    assert episode.improvement < 1
    lost = record_episode(env, params, lambda carry, obs, key: (jnp.int32(29), carry), jax.random.key(0))
    assert len(lost.seconds) < 60 and abs(lost.iminer[-1]) >= 2 > np.abs(lost.iminer[:-1]).max()


@pytest.mark.parametrize(
    "settings,word",
    [
        ({"actions": "quantile:1"}, "quantile:N"),
        ({"actions": "five"}, "fixed7"),
        ({"model": "surrogate"}, "surrogate fit"),
        ({"model": "residual"}, "recording=FILE"),
        ({"model": "residual", "recording": "x.csv", "domain_randomisation": True}, "model=generator"),
        ({"model": "surrogate", "surrogate": "x", "fit": 1}, "its own plant"),
    ],
)
def test_bad_settings_are_explained(settings, word):
    with pytest.raises(ValidationError, match=word):
        ExaBoosterConfig(**settings)


def test_action_maps():
    assert len(actions.action_map("fixed7")) == 7
    for count in (2, 7, 30, 61):
        deltas = actions.action_map(f"quantile:{count}")
        assert len(deltas) == count and (np.diff(deltas) > 0).all() and 0.0 in deltas
    changes = np.random.default_rng(0).normal(0, 0.01, 100_000)
    deltas = actions.action_map("quantile:3", changes)
    np.testing.assert_allclose(deltas, [-0.00674, 0, 0.00674], atol=2e-4)
