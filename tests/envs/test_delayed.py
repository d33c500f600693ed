"""Steps and updates that sleep: every one of them, in training only, and nothing else changes."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc import config as configs
from jaxrl_hpc.envs import delayed
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.ops import pause
from jaxrl_hpc.runtime.build import build, hypers_of
from tests import small

needs_pauses = pytest.mark.skipif(not pause.available(), reason="libpause.so is not compiled")
pytestmark = needs_pauses


@pytest.fixture
def naps(monkeypatch):
    """What would be slept, instead of sleeping."""
    found = []

    def sleep(seconds, after, *, in_turn):
        def note(seconds):
            found.append((round(float(seconds), 6), in_turn))
            return np.float32(0)

        return jax.experimental.io_callback(
            note, jax.ShapeDtypeStruct((), jnp.float32), seconds, ordered=True
        )

    monkeypatch.setattr(pause, "sleep", sleep)
    return found


def trained(**run):
    """(workflow, parameters after ten iterations)."""
    config = small.config(run=run)
    flow = build(config).workflow
    state = jax.jit(flow.init)(jax.random.key(0), jax.tree.map(jnp.float32, hypers_of(config)))
    state, _ = jax.jit(lambda s: flow.step(flow.warmup(s), 10))(state)
    return flow, jax.tree.leaves(jax.device_get(state.learner.params))


def test_every_step_and_update_sleeps_and_results_are_the_same(naps):
    flow, plain = trained()
    assert naps == []
    _, slept = trained(step_seconds=0.25, update_seconds=0.5)
    assert naps.count((0.25, False)) == 10 + flow.warmup_steps // 4
    assert naps.count((0.5, True)) == 10
    for one, other in zip(plain, slept, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.full
def test_minibatches_take_their_parts(naps):
    """Two epochs of four minibatches: twice the time of a batch."""
    agent = {"name": "ppo", "network": {"hidden": [8]}, "epochs": 2, "minibatches": 4}
    data = small.data(agent=agent, workflow={"num_envs": 4, "unroll_length": 8}, run={"update_seconds": 0.4})
    del data["replay"]
    config = configs.from_dict(data)
    flow = build(config).workflow
    state = jax.jit(flow.init)(jax.random.key(0), jax.tree.map(jnp.float32, hypers_of(config)))
    jax.block_until_ready(jax.jit(lambda s: flow.step(s, 1))(state))
    assert naps == [(0.1, True)] * 8


def test_step_times_of_a_tail_are_drawn_by_keys_and_have_the_mean():
    keys = jax.random.split(jax.random.key(0), 20_000)
    times = np.asarray(jax.vmap(lambda k: delayed.pareto(k, 2.0, 3.0))(keys))
    assert times.min() >= 2.0 * 2 / 3
    np.testing.assert_allclose(times.mean(), 2.0, rtol=0.05)
    np.testing.assert_allclose(np.mean(times > 4.0), (1 / 3) ** 3, rtol=0.15)


def test_a_tail_without_a_mean_is_refused():
    with pytest.raises(UserError, match="step_tail"):
        small.config(run={"step_seconds": 0.1, "step_tail": 0.9})


def test_evaluation_does_not_sleep():
    env = build(small.config(run={"step_seconds": 1.0})).env
    assert env.host.for_evaluation is not None and env.host.for_evaluation.step is not env.step


@pytest.mark.parametrize(("in_turn", "seconds"), [(False, 0.03), (True, 0.06)])
def test_mapped_pauses_happen_at_once_or_in_turn(in_turn, seconds):
    paused = jax.jit(jax.vmap(lambda s: pause.sleep(s, s, in_turn=in_turn)))
    times = jnp.array([0.03, 0.01, 0.02], jnp.float32)
    paused(0 * times).block_until_ready()
    begin = time.perf_counter()
    assert not paused(times).any()
    assert time.perf_counter() - begin >= seconds
