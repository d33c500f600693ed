"""What every off-policy agent owes the workflows: stable shapes, and lanes that do not disturb each other."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.agents import ddpg, dqn, dyna_q, iql, mbpo, recurrent_dqn, sac, td3
from jaxrl_hpc.agents.normalise import NormaliseConfig
from jaxrl_hpc.networks.recurrent import initial_carry
from jaxrl_hpc.networks.torso import NetworkConfig
from jaxrl_hpc.schema import traced_values
from jaxrl_hpc.types import Agent, Batch, EnvSpec, LearnerState
from jaxrl_hpc.workflows import update as learning
from tests.agents.numpy_check import windows
from tests.tiers import quick

ONES = np.ones(2, np.float32)
DISCRETE = EnvSpec("made up", (4,), np.dtype(np.float32), 3, (), None, None, 10)
CONTINUOUS = DISCRETE._replace(num_actions=None, action_shape=(2,), action_low=-ONES, action_high=ONES)
SMALL = NetworkConfig(hidden=(8,))
CASES: dict[str, tuple[Any, Any, EnvSpec]] = {
    "dqn": (dqn, dqn.Config(network=SMALL, n_step=2, batch_size=8), DISCRETE),
    "dqn rainbow": (
        dqn,
        dqn.Config(network=SMALL, n_step=2, batch_size=8, returns="c51", atoms=5, noisy=True, dueling=True),
        DISCRETE,
    ),
    "dqn quantile": (dqn, dqn.Config(network=SMALL, batch_size=8, returns="quantile", atoms=5), DISCRETE),
    "recurrent_dqn": (
        recurrent_dqn,
        recurrent_dqn.Config(network=SMALL, lstm=5, burn_in=1, length=2, batch_size=8),
        DISCRETE,
    ),
    "dyna_q": (dyna_q, dyna_q.Config(network=SMALL, batch_size=8, planning_updates=2), DISCRETE),
    "dyna_q normalised": (
        dyna_q,
        dyna_q.Config(
            network=SMALL, batch_size=8, planning_updates=2, normalise=NormaliseConfig(observation=True)
        ),
        DISCRETE,
    ),
    "sac": (sac, sac.Config(network=SMALL, n_step=2, batch_size=8, policy_delay=2, dropout=0.1), CONTINUOUS),
    "sac batch norm": (
        sac,
        sac.Config(network=SMALL, batch_size=8, batch_norm=True, normalise=NormaliseConfig(observation=True)),
        CONTINUOUS,
    ),
    "iql": (iql, iql.Config(network=SMALL, n_step=2, batch_size=8), CONTINUOUS),
    "mbpo": (
        mbpo,
        mbpo.Config(
            network=SMALL, batch_size=8, planning_updates=2, normalise=NormaliseConfig(observation=True)
        ),
        CONTINUOUS,
    ),
    "mbpo batch norm": (
        mbpo,
        mbpo.Config(network=SMALL, batch_size=8, planning_updates=2, batch_norm=True),
        CONTINUOUS,
    ),
    "td3 cloning": (td3, td3.Config(network=SMALL, batch_size=8, behaviour_cloning=True), CONTINUOUS),
    "td3": (td3, td3.Config(network=SMALL, n_step=2, batch_size=8, noise="ou"), CONTINUOUS),
    "ddpg": (ddpg, ddpg.Config(network=SMALL, batch_size=8), CONTINUOUS),
}


def parts(name: str) -> tuple[Agent, dict[str, jax.Array], Batch]:
    module, config, spec = CASES[name]
    agent = module.make(config, spec, num_envs=4)
    hypers = {k: jnp.float32(v) for k, v in traced_values(config).items()}
    batch = windows(agent.needs.length, 8, 4, 3 if spec.discrete else (2,))
    if name == "recurrent_dqn":
        memory = jax.tree.map(lambda x: jnp.tile(x, (agent.needs.length, 1, 1)), initial_carry(8, 5))
        batch = batch._replace(data=batch.data._replace(extras={"memory": memory}))
    return agent, hypers, batch


@pytest.mark.parametrize("name", CASES)
def test_shapes_are_stable(name: str) -> None:
    """Nothing here computes: only shapes and types are followed."""
    agent, hypers, batch = parts(name)
    _, config, spec = CASES[name]
    state = jax.eval_shape(agent.init, jax.random.key(0), hypers)
    keys = jax.random.split(jax.random.key(0), 4)
    carry = jax.eval_shape(agent.carry, jnp.arange(4))
    obs = jnp.zeros((4, 4))
    for greedy in (False, True):
        acting = partial(agent.act, obs=obs, key=keys, greedy=greedy)
        action, after, _ = jax.eval_shape(lambda s, c, act=acting: act(agent.actor(s), c), state, carry)
        assert action.shape == (4, *spec.action_shape) and action.dtype == spec.action_dtype
        assert after == carry
    new, metrics, priority = jax.eval_shape(
        lambda s: learning.learn(agent, s, batch, jax.random.key(1)), state
    )
    assert jax.tree.structure(new) == jax.tree.structure(state)
    for old_leaf, new_leaf in zip(jax.tree.leaves(state), jax.tree.leaves(new), strict=True):
        assert (old_leaf.shape, old_leaf.dtype) == (new_leaf.shape, new_leaf.dtype)
    assert priority.shape == (config.batch_size,)
    assert {"loss", "q_value", "td_error"} <= set(metrics) and all(m.shape == () for m in metrics.values())


@pytest.mark.parametrize("name", quick(CASES, ["td3"]))
def test_a_lane_among_sixteen_is_the_lane_alone(name: str) -> None:
    agent, hypers, batch = parts(name)

    def run(key: jax.Array, rate: jax.Array) -> LearnerState:
        def update(number: jax.Array, state: LearnerState) -> LearnerState:
            return learning.learn(agent, state, batch, jax.random.fold_in(key, number))[0]

        return jax.lax.fori_loop(0, 3, update, agent.init(key, hypers | {"learning_rate": rate}))

    keys = jax.random.split(jax.random.key(0), 16)
    rates = jnp.linspace(1e-4, 1e-2, 16)
    together = jax.jit(jax.vmap(run))(keys, rates)
    alone = jax.jit(run)(keys[5], rates[5])
    jax.tree.map(
        lambda many, one: np.testing.assert_allclose(many[5], one, rtol=1e-4, atol=1e-6), together, alone
    )
    other = max(jax.tree.leaves(together.params), key=lambda leaf: leaf.size)
    assert not np.allclose(other[5], other[6])
