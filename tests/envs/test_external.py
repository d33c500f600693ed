"""The bridge to outside simulators: steps are the library's own, faults are named, nothing is shared."""

import functools
import json

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from jaxrl_hpc.envs import user_env
from jaxrl_hpc.envs.external import gymnasium_env
from jaxrl_hpc.envs.external.bridge import ExternalState, seeds_of
from jaxrl_hpc.envs.external.gymnasium_copies import Copies
from jaxrl_hpc.envs.external.gymnasium_vector import Vector
from jaxrl_hpc.envs.external.host import simulator_failures_told
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.runtime import train
from jaxrl_hpc.runtime.build import build
from tests import small
from tests.envs.broken import Broken
from tests.tiers import quick

COPIES, STEPS = 3, 60
KEYS = jax.random.split(jax.random.key(3), COPIES)
ACTIONS = np.random.default_rng(0).integers(2, size=(STEPS, COPIES)).astype(np.int32)


@functools.partial(jax.jit, static_argnums=0)
def play(env, keys, actions):
    """Reset and steps inside one program -> (first observation, EnvStep [T, B])."""
    state, first = env.reset(keys)

    def one(state, action):
        return env.step(keys, state, action)

    return first, jax.lax.scan(one, state, actions)[1]


def by_hand(limit):
    """Gymnasium's own environments, stepped and reset one by one; rows as an EnvStep has them."""
    rows, firsts = [], []
    for copy, seed in enumerate(np.asarray(seeds_of(KEYS))):
        env = gymnasium.make("CartPole-v1", max_episode_steps=limit)
        obs, _ = env.reset(seed=int(seed))
        firsts.append(obs)
        mine = []
        for action in ACTIONS[:, copy]:
            final, reward, terminated, truncated, _ = env.step(int(action))
            obs = env.reset()[0] if terminated or truncated else final
            mine.append((obs, final, reward, terminated, truncated and not terminated))
        rows.append(mine)
    columns = [np.stack([np.stack([step[i] for step in mine]) for mine in rows], axis=1) for i in range(5)]
    return np.stack(firsts), columns


def test_steps_are_the_librarys_own():
    env = gymnasium_env.make(gymnasium_env.Config(id="CartPole-v1", max_episode_steps=15))
    first, steps = play(env, KEYS, ACTIONS)
    expected_first, (obs, final, reward, terminated, truncated) = by_hand(15)
    assert terminated.any() and truncated.any()
    np.testing.assert_array_equal(steps.terminated, terminated)
    np.testing.assert_array_equal(steps.truncated, truncated)
    np.testing.assert_allclose(steps.reward, reward)
    np.testing.assert_array_equal(first, expected_first)
    np.testing.assert_allclose(steps.obs, obs, rtol=1e-6)
    np.testing.assert_allclose(steps.final_obs, final, rtol=1e-6)


def test_next_step_libraries_take_their_reset_alone():
    """Against the vector environment itself, of one copy, whose reset steps are taken out by hand."""
    env = gymnasium_env.make(gymnasium_env.Config(id="CartPole-v1", copies="vector"))
    first, steps = play(env, KEYS, ACTIONS)
    for copy, seed in enumerate(np.asarray(seeds_of(KEYS))):
        raw = gymnasium.make_vec("CartPole-v1", 1, "vector_entry_point")
        obs, _ = raw.reset(seed=int(seed))
        np.testing.assert_array_equal(first[copy], obs[0])
        for time, action in enumerate(ACTIONS[:, copy]):
            final, reward, terminated, truncated, _ = raw.step(np.array([action]))
            final = final.copy()
            np.testing.assert_array_equal(steps.final_obs[time, copy], final[0])
            assert steps.terminated[time, copy] == terminated[0] and steps.reward[time, copy] == reward[0]
            if terminated[0] or truncated[0]:
                final, reward, *_ = raw.step(np.array([action]))
                assert reward[0] == 0  # the reset step
            np.testing.assert_array_equal(steps.obs[time, copy], final[0])
    assert steps.terminated.sum() >= 3


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_vector_rules_agree_with_single_copies(mode):
    def one():
        return gymnasium.make("CartPole-v1", max_episode_steps=12)

    spec, _ = gymnasium_env.describe(gymnasium_env.Config(id="CartPole-v1"))
    vector = Vector(SyncVectorEnv([one] * COPIES, autoreset_mode=mode), spec)
    single = Copies(one, spec, COPIES)
    seeds = np.arange(7, 7 + COPIES, dtype=np.uint32)
    np.testing.assert_array_equal(vector.reset(seeds), single.reset(seeds))
    ended = 0
    for action in ACTIONS:
        left, right = vector.step(action), single.step(action)
        for a, b in zip(left[:5], right[:5], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)
        ended += int((left.terminated | left.truncated).sum())
    assert ended > COPIES


def test_copies_in_processes_of_their_own_agree_with_copies_here():
    here, apart = (
        gymnasium_env.make(gymnasium_env.Config(id="CartPole-v1", max_episode_steps=12, copies=copies))
        for copies in ("here", "processes")
    )
    expected, found = play(here, KEYS, ACTIONS), play(apart, KEYS, ACTIONS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)
    apart.host.simulators.close()


def limits(how):
    """A deadline where it is to pass; steps of a busy machine take less."""
    return {"deadline_seconds": 5.0} if how == "hang" else {}


@pytest.mark.parametrize("how", quick(["raise", "nan", "kill", "hang"], ["raise", "kill"]))
def test_a_process_that_fails_is_named_and_replaced(how, caplog):
    texts = {
        "raise": r"raised RuntimeError: the pump has stopped \(broken.py line \d+\)",
        "nan": "returned an observation that is not finite",
        "kill": r"lost its process \(exit code -9\)",
        "hang": "did not return within env.deadline_seconds = 5",
    }
    settings = {"id": "tests.envs.broken:Doomed-v0", "copies": "processes", **limits(how)}
    kwargs = {"how": how, "doomed": int(seeds_of(KEYS)[1])}
    name = "env 'gymnasium/tests.envs.broken:Doomed-v0'"
    env = gymnasium_env.make(gymnasium_env.Config(**settings, kwargs=kwargs))
    text = rf"{name}: copy 1 {texts[how]} \(step 4, rank 0\); env.on_error=reset"
    with pytest.raises(UserError, match=text), simulator_failures_told(env):
        jax.block_until_ready(play(env, KEYS, ACTIONS[:8]))
    env.host.simulators.close()
    env = gymnasium_env.make(gymnasium_env.Config(**settings, kwargs=kwargs, on_error="reset"))
    steps = play(env, KEYS, ACTIONS[:6])[1]  # all copies are made anew, and the doomed one again
    np.testing.assert_array_equal(steps.info["dropped"][:, 1], [0, 0, 0, 1, 0, 0])
    assert env.host.simulators.dropped == COPIES and (steps.reward[4:] == 1).all()
    processes = next(iter(env.host.simulators.alive.values())).simulator.env.processes
    env.host.simulators.close()
    assert not any(process.is_alive() for process in processes)


def test_seeds_reach_the_simulator():
    env = gymnasium_env.make(gymnasium_env.Config(id="CartPole-v1"))
    first, again = play(env, KEYS, ACTIONS)[1].obs, play(env, KEYS, ACTIONS)[1].obs
    other = play(env, jax.random.split(jax.random.key(4), COPIES), ACTIONS)[1].obs
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_a_vmap_over_parts_is_one_call():
    """Logical shards: [2, 3] copies are one simulator of six."""
    env = gymnasium_env.make(gymnasium_env.Config(id="CartPole-v1"))
    keys = jax.random.split(jax.random.key(3), (2, 3))

    @jax.jit
    def run(keys):
        return jax.vmap(lambda k: env.step(k, env.reset(k)[0], jnp.ones(3, jnp.int32))[1])(keys)

    parts = run(keys)
    assert [alive.copies for alive in env.host.simulators.alive.values()] == [
        6
    ] and env.host.simulators.steps == 1
    whole = play(env, keys.reshape(-1), jnp.ones((1, 6), jnp.int32))[1]
    np.testing.assert_array_equal(parts.obs.reshape(6, 4), whole.obs[0])


def test_evaluation_does_not_disturb_training():
    env = gymnasium_env.make(gymnasium_env.Config(id="CartPole-v1"))
    step = jax.jit(env.step)
    state, _ = jax.jit(env.reset)(KEYS)
    seen = []
    for time in range(20):
        if time % 5 == 0:
            play(env.host.for_evaluation, jax.random.split(jax.random.key(time), 2), ACTIONS[:9, :2])
        state, outcome = step(KEYS, state, ACTIONS[time])
        seen.append(outcome.obs)
    np.testing.assert_array_equal(jnp.stack(seen), play(env, KEYS, ACTIONS[:20])[1].obs)
    assert len(env.host.for_evaluation.host.simulators.alive) == 1  # used again, not made again


def broken(how, **more):
    Broken.made = -1  # the one that is made to look at
    return user_env.make(user_env.Config(name="tests.envs.broken:Broken", kwargs={"how": how}, **more))


TROUBLES = {
    "raise": r"raised RuntimeError: the pump has stopped \(broken.py line \d+\)",
    "nan": "returned an observation that is NaN",
    "reward": "returned a reward that is infinite",
    "shape": r"returned an observation of shape \(3,\) instead of \(2,\)",
    "dtype": "returned an observation of type <U1 instead of float32",
    "hang": r"did not return within env.deadline_seconds = 5",
}


@pytest.mark.parametrize("how", TROUBLES)
def test_faults_are_named(how):
    env = broken(how, **limits(how))
    text = rf"env 'tests.envs.broken:Broken': copy 2 {TROUBLES[how]} \(step 4, rank 0\); env.on_error=reset"
    with pytest.raises(UserError, match=text), simulator_failures_told(env):
        jax.block_until_ready(play(env, KEYS, ACTIONS))


@pytest.mark.parametrize("how", quick(["raise", "hang"], ["raise"]))
def test_broken_episodes_are_dropped_and_counted(how, caplog):
    env = broken(how, **limits(how), on_error="reset")
    steps = play(env, KEYS, ACTIONS[:8])[1]
    cut = [2] if how == "raise" else [0, 1, 2]  # a simulator that hangs is made anew as a whole
    expected = np.zeros((8, COPIES))
    expected[3, cut] = 1
    np.testing.assert_array_equal(steps.info["dropped"], expected)
    np.testing.assert_array_equal(steps.truncated, expected > 0)
    np.testing.assert_array_equal(steps.final_obs[3, 2], steps.obs[2, 2])  # the last that was seen
    assert (steps.reward == 1 - expected).all() and not steps.terminated.any()
    assert env.host.simulators.counts() == {"dropped_episodes": len(cut), "restarted_episodes": 0}
    assert "copy 2" in caplog.text and "dropped" in caplog.text


def test_a_simulator_out_of_a_checkpoint_is_made_anew():
    env = gymnasium_env.make(gymnasium_env.Config(id="CartPole-v1"))
    old = jnp.full((COPIES, 4), 9.0)
    state = ExternalState(jnp.full(COPIES, 12345, jnp.uint32), old)
    state, cut = jax.jit(env.step)(KEYS, state, ACTIONS[0])
    assert cut.truncated.all() and (cut.info["dropped"] == 1).all()
    np.testing.assert_array_equal(cut.final_obs, old)
    assert np.abs(cut.obs).max() < 0.06  # a start state
    after = jax.jit(env.step)(KEYS, state, ACTIONS[0])[1]
    assert not after.truncated.any() and env.host.simulators.restarted == COPIES


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"id": "CartPol-v1"},
            "env.id: there is no Gymnasium environment 'CartPol-v1'; did you mean CartPole-v1",
        ),
        (
            {"id": "CartPole-v1", "kwargs": {"gravity": 3}},
            "env.kwargs: 'CartPole-v1' cannot be made with them",
        ),
        ({"id": "no_module:Thing-v0"}, "env.id: 'no_module:Thing-v0' names a module that cannot be imported"),
        (
            {"id": "Acrobot-v1", "copies": "vector"},
            "has no vector environment of its own; use env.copies=here",
        ),
    ],
)
def test_mistakes_are_one_sentence(settings, text):
    with pytest.raises(UserError, match=text):
        gymnasium_env.make(gymnasium_env.Config(**settings))


def test_observations_of_other_kinds_become_vectors():
    env = gymnasium_env.make(gymnasium_env.Config(id="FrozenLake-v1"))
    assert env.spec.obs_shape == (16,) and env.spec.max_episode_steps == 100
    first, _ = play(env, KEYS, ACTIONS[:1])
    np.testing.assert_array_equal(first, np.eye(16)[[0] * COPIES])


OUTSIDE = {"env": {"name": "gymnasium", "id": "CartPole-v1"}}


def test_one_seed_per_process(tmp_path):
    with pytest.raises(UserError, match=r"run.seeds: env 'gymnasium/CartPole-v1' .* one seed per process"):
        train.train(small.config(**OUTSIDE, run={"seeds": 2}), tmp_path / "run")


@pytest.mark.slow
def test_shards_share_a_simulator_and_what_cannot_is_refused():
    flow = {"name": "sharded", "num_envs": 4, "shards": 2}
    config = small.config(
        **OUTSIDE, workflow=flow, replay={"name": "uniform", "capacity": 256, "min_size": 16}
    )
    parts = build(config)
    runner = train.make_runner(config, parts, train.lanes_of(config))
    runner.initialise()
    (metrics,) = runner.per_lane(runner.step(5))
    assert np.isfinite(metrics["loss"])
    assert {alive.copies for alive in parts.env.host.simulators.alive.values()} == {4}
    with pytest.raises(UserError, match=r"set workflow.devices=1 and workflow.deterministic=false"):
        build(small.config(**OUTSIDE, workflow={**flow, "deterministic": True}))
    with pytest.raises(UserError, match=r"env.interface: LunarLander-v3 .* set env.interface=callback"):
        build(small.config(env={"name": "LunarLander-v3"}, workflow=flow))


def test_train_stop_and_resume(tmp_path, monkeypatch):
    """A run that is stopped goes on, says what it cannot keep, and counts what that costs."""
    config = small.config(**OUTSIDE, run={"eval_every": 0, "log_every": 1000})
    with monkeypatch.context() as patch:
        small.signal_at_chunk(patch, 2)
        assert not train.train(config, tmp_path / "run", say=lambda _: None).finished
    said = []
    outcome = train.train(config, tmp_path / "run", resume=True, say=said.append)
    assert outcome.finished
    assert "'gymnasium/CartPole-v1' runs outside the program" in " ".join(said)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["restarted_episodes"] == 4 and summary["dropped_episodes"] == 0
    assert summary["eval_return_score"] > 5
