"""envpool's simulators, by both interfaces, against envpool itself stepped by hand."""

from typing import get_args

import jax
import numpy as np
import pytest

from jaxrl_hpc.comm.ranks import world
from jaxrl_hpc.envs.external import envpool_env, envpool_xla
from jaxrl_hpc.envs.external.envpool_simulator import Pool, PoolTask, make_pool
from jaxrl_hpc.envs.external.host import simulator_failures_told
from jaxrl_hpc.envs.names import Lander, Robot
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.rollout import build_transition
from jaxrl_hpc.schema import changeable_names
from tests.tiers import quick

COPIES, STEPS = 3, 260
KEYS = jax.random.split(jax.random.key(0), COPIES)


def play(env, state, actions):
    """Steps inside one program."""
    return jax.jit(lambda s, a: jax.lax.scan(lambda s, a: env.step(KEYS, s, a), s, a))(state, actions)


def by_hand(task, seed, actions):
    """Raw envpool, which resets in the step after an end: those steps are taken out, copy by copy.

    -> per copy, rows of (final_obs, reward, terminated, truncated, obs to act on next).
    """
    pool = make_pool(task, COPIES, seed)
    obs, _ = pool.reset()
    taken = np.zeros(COPIES, int)
    rows = [[] for _ in range(COPIES)]
    ended = np.zeros(COPIES, bool)
    while (taken < len(actions)).any() or ended.any():
        action = np.stack([actions[min(t, len(actions) - 1), i] for i, t in enumerate(taken)])
        obs, reward, failed, limit, _ = pool.step(action)
        for i in range(COPIES):
            if ended[i]:  # this step was its reset
                rows[i][-1] = (*rows[i][-1][:4], obs[i].copy())
            else:
                rows[i].append((obs[i].copy(), reward[i], failed[i], limit[i], obs[i].copy()))
                taken[i] += 1
        ended = (failed | limit) & ~ended
    return [mine[: len(actions)] for mine in rows]


@pytest.mark.parametrize("name", quick(get_args(Lander), get_args(Lander)[:1]))
def test_both_interfaces_are_envpool(name):
    config = envpool_env.LanderConfig(name=name, max_episode_steps=90)
    env = envpool_env.make_lander(config)
    rng = np.random.default_rng(0)
    if env.spec.discrete:
        actions = rng.integers(4, size=(STEPS, COPIES)).astype(np.int32)
    else:
        actions = rng.uniform(-1, 1, (STEPS, COPIES, 2)).astype(np.float32)
    env.host.simulators.seed = 5
    state, _ = jax.jit(env.reset)(KEYS)
    _, steps = play(env, state, actions)
    seed = int(np.random.SeedSequence([5, world().rank]).generate_state(1)[0])
    expected = by_hand(env.host.simulators.task, seed, actions)
    simulator = Pool(env.host.simulators.task, env.spec, COPIES)
    simulator.reset(np.array([seed, 0, 0], np.uint32))
    called = [simulator.step(action) for action in actions]
    for i in range(COPIES):
        for time, (final, reward, failed, limit, obs) in enumerate(expected[i]):
            row = called[time]
            assert (row.terminated[i], row.truncated[i]) == (failed, limit)
            np.testing.assert_array_equal(row.final_obs[i], final)
            np.testing.assert_array_equal(row.obs[i], obs)
            assert row.reward[i] == reward
            inside = jax.tree.map(lambda x, t=time, i=i: np.asarray(x[t, i]), steps)
            np.testing.assert_array_equal(inside.final_obs, final)
            np.testing.assert_array_equal(inside.obs, obs)
            assert (inside.reward, inside.terminated, inside.truncated) == (reward, failed, limit)
    assert np.any([r.truncated for r in called]) and np.any([r.terminated for r in called])
    check_rules(steps)


def test_threads_of_the_emulators_change_nothing():
    actions = np.random.default_rng(0).integers(4, size=(STEPS, COPIES)).astype(np.int32)
    played = []
    for threads in (1, 3):
        env = envpool_env.make_atari(envpool_env.AtariConfig(threads=threads))
        env.host.simulators.seed = 5
        state, first = jax.jit(env.reset)(KEYS)
        played.append((first, play(env, state, actions)[1]))
        assert env.host.simulators.pools[COPIES].pool.spec.config.num_threads == threads
    jax.tree.map(np.testing.assert_array_equal, *played)
    assert np.asarray(played[0][1].terminated).any()
    assert "threads" in changeable_names(envpool_env.AtariConfig), "a run may continue on another machine"


def test_robots_are_as_envpool_has_them():
    import envpool

    assert set(envpool_env.ROBOTS) == set(get_args(Robot))
    for name, sizes in envpool_env.ROBOTS.items():
        spec = envpool.make_spec(name)
        assert spec.observation_space.shape == (sizes.observation,)
        assert spec.action_space.shape == (sizes.action,)
        np.testing.assert_allclose(spec.action_space.high, sizes.bound, rtol=1e-6)
        np.testing.assert_allclose(spec.action_space.low, -sizes.bound, rtol=1e-6)
        assert spec.config.max_episode_steps == sizes.limit


def test_a_robot_falls_and_runs_out_of_time():
    """Hopper falls soon; HalfCheetah never, so that its time ends. Both as envpool has it, in 32 bits."""
    actions = np.random.default_rng(0).uniform(-1, 1, (60, COPIES, 6)).astype(np.float32)
    for name, size, limit in (("Hopper-v5", 3, 1_000), ("HalfCheetah-v5", 6, 25)):
        env = envpool_env.make_robot(envpool_env.RobotConfig(name=name, max_episode_steps=limit))
        state, first = jax.jit(env.reset)(KEYS)
        assert first.dtype == np.float32 and env.spec.action_shape == (size,)
        _, steps = play(env, state, actions[..., :size])
        check_rules(steps)
        expected = by_hand(
            PoolTask(name, {"max_episode_steps": limit}), int(state.ticket[0]), actions[..., :size]
        )
        for i in range(COPIES):
            for time, (final, reward, failed, cut, obs) in enumerate(expected[i]):
                row = jax.tree.map(lambda x, t=time, i=i: np.asarray(x[t, i]), steps)
                np.testing.assert_allclose(row.final_obs, final, rtol=1e-5, atol=1e-6)
                np.testing.assert_allclose(row.obs, obs, rtol=1e-5, atol=1e-6)
                assert (row.reward, row.terminated, row.truncated) == (reward, failed, cut)
        assert np.asarray(steps.terminated if name == "Hopper-v5" else steps.truncated).any()


def check_rules(steps):
    """What every Env promises, on what the compiled program saw."""
    done = np.asarray(steps.terminated | steps.truncated)
    assert done.any() and not np.asarray(steps.terminated & steps.truncated).any()
    same = (np.asarray(steps.obs) == np.asarray(steps.final_obs)).all(axis=tuple(range(2, steps.obs.ndim)))
    np.testing.assert_array_equal(same, ~done)
    assert not steps.info["dropped"].any()


def test_a_pool_out_of_a_checkpoint_begins_again():
    env = envpool_env.make_lander(envpool_env.LanderConfig())
    state, first = jax.jit(env.reset)(KEYS)
    old = state._replace(ticket=state.ticket + 1)
    actions = np.zeros((2, COPIES), np.int32)
    _, steps = play(env, old, actions)
    np.testing.assert_array_equal(steps.info["dropped"], [[1] * COPIES, [0] * COPIES])
    np.testing.assert_array_equal(steps.final_obs[0], first)
    assert steps.truncated[0].all() and env.host.simulators.restarted == COPIES


def test_faults_are_one_sentence_with_the_step(monkeypatch):
    env = envpool_env.make_lander(envpool_env.LanderConfig())
    state, first = jax.jit(env.reset)(KEYS)
    state, _ = play(env, state, np.zeros((5, COPIES), np.int32))
    assert state.steps == 5
    text = r"env 'LunarLander-v3': copy 1 returned numbers that are not finite \(step 6, rank 0\)"
    with pytest.raises(UserError, match=text), simulator_failures_told(env):
        env.host.simulators.attend(np.zeros(COPIES, bool), np.array([True, False, True]), state.steps + 1)
    # a run that is resumed does not begin with the start states that the run began with
    again = envpool_env.make_lander(envpool_env.LanderConfig())
    again.host.simulators.pool(COPIES)
    assert (again.host.simulators.resume_all(COPIES, 5) != np.asarray(first)).any()
    monkeypatch.setattr(envpool_xla, "reset_some", lambda *_: 1 // 0)
    text = r"resetting it raised ZeroDivisionError: .* \(test_envpool.py line \d+\) \(step 5, rank 0\)"
    with pytest.raises(UserError, match=text), simulator_failures_told(again):
        jax.block_until_ready(jax.jit(again.reset)(KEYS))


def test_atari():
    """Bytes stay bytes; lives end the learner's episodes but not games; the learner's rewards are clipped."""
    config = envpool_env.AtariConfig(name="SpaceInvaders-Atari", max_episode_steps=400, no_op_starts=1)
    env = envpool_env.make_atari(config)
    assert env.spec.obs_shape == (84, 84, 4) and env.spec.obs_dtype == np.uint8
    actions = np.random.default_rng(1).integers(6, size=(300, COPIES)).astype(np.int32)
    state, first = jax.jit(env.reset)(KEYS)
    _, steps = play(env, state, actions)
    transition = build_transition(first, actions[0], jax.tree.map(lambda x: x[0], steps), ())
    assert transition.obs.dtype == transition.next_obs.dtype == np.uint8
    assert set(np.unique(steps.reward)) == {0.0, 1.0}
    check_rules(steps)
    # frames are stacked oldest first, and the newest three of one step are the oldest three of the next
    going = np.flatnonzero(~np.asarray(steps.terminated | steps.truncated)[:-1, 0])[:50]
    later = np.asarray(steps.final_obs[going + 1, 0])
    np.testing.assert_array_equal(np.asarray(steps.obs[going, 0])[..., 1:], later[..., :-1])
    scoring = env.host.for_evaluation.host.simulators.make(COPIES)
    scoring.reset(np.array([3, 0, 0], np.uint32))
    outcomes = [scoring.step(action) for action in actions]
    assert max(o.reward.max() for o in outcomes) >= 5.0  # raw
    lives = np.sum([o.terminated for o in outcomes], axis=0)
    assert lives.max() <= 1  # 300 actions are not three games, though lives were lost
    assert np.asarray(steps.terminated).sum() >= 1 and not steps.truncated.any()


@pytest.mark.parametrize("limit", quick([400, 40], [40]))
def test_lives_of_one_game(limit):
    """Breakout without moving: a ball after the other is lost, five to a game, or the time is over."""
    config = envpool_env.AtariConfig(name="Breakout-Atari", max_episode_steps=limit)
    env = envpool_env.make_atari(config)
    actions = np.zeros((300, COPIES), np.int32)
    state, _ = jax.jit(env.reset)(KEYS)
    _, steps = play(env, state, actions)
    scoring = env.host.for_evaluation.host.simulators.make(COPIES)
    scoring.reset(np.array([3, 0, 0], np.uint32))
    outcomes = [scoring.step(action) for action in actions]
    lives, games = (np.sum(x, axis=0) for x in (steps.terminated, [o.terminated for o in outcomes]))
    cut = np.sum([o.truncated for o in outcomes], axis=0)
    assert (lives >= 7).all()
    if limit == 400:
        assert (games >= 1).all() and (games <= 3).all() and not cut.any()
        # without moving all balls of a game are lost after about as long
        ends = np.flatnonzero([o.terminated[0] for o in outcomes])
        assert ends[0] > 4 * lives[0] and 90 < ends[0] < 200
    else:
        assert not games.any() and (cut == 7).all()


def test_a_missing_game_is_a_sentence(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "envpool", None)
    with pytest.raises(UserError, match=r'needs envpool: pip install "jaxrl-hpc\[external\]"'):
        make_pool(PoolTask("LunarLander-v3", {}), 1, 0)
