"""Steps that sleep: every one of them, in training only, and nothing else changes."""

import jax
import numpy as np

from jaxrl_hpc.envs import delayed
from jaxrl_hpc.runtime.build import build, hypers_of
from tests import small


def test_every_step_sleeps_and_results_are_the_same(monkeypatch):
    naps = []
    monkeypatch.setattr(delayed.time, "sleep", naps.append)
    params = []
    for seconds in (0.0, 0.25):
        config = small.config(run={"step_seconds": seconds})
        flow = build(config).workflow
        state = jax.jit(flow.init)(jax.random.key(0), jax.tree.map(jax.numpy.float32, hypers_of(config)))
        state, _ = jax.jit(lambda s, flow=flow: flow.step(flow.warmup(s), 10))(state)
        params.append(jax.tree.leaves(jax.device_get(state.learner.params)))
    assert naps == [0.25] * (10 + flow.warmup_steps // 4)
    for plain, slept in zip(*params, strict=True):
        np.testing.assert_array_equal(plain, slept)


def test_evaluation_does_not_sleep():
    env = build(small.config(run={"step_seconds": 1.0})).env
    assert env.host.for_evaluation is not None and env.host.for_evaluation.step is not env.step
