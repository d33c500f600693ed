"""A server that acts for environments elsewhere builds the very unrolls that rollout.unroll builds."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc import config as configs
from jaxrl_hpc import rollout
from jaxrl_hpc.runtime.build import build, hypers_of
from jaxrl_hpc.workflows.central_inference.env_client import advance
from jaxrl_hpc.workflows.central_inference.server_state import InferencePrograms, known_of

COPIES, LENGTH = 3, 6
DATA = {
    "agent": {"name": "a2c", "network": {"hidden": [8]}, "lstm": 8},
    "env": {"name": "CartPole-v1", "params": {"max_steps_in_episode": 5}},
    "workflow": {"name": "fused", "num_envs": COPIES, "unroll_length": LENGTH},
}


def test_two_ranks_served_in_any_order_get_the_unrolls_of_rollout():
    config = configs.from_dict(DATA)
    env, agent, _, _ = build(config)
    learner = agent.init(jax.random.key(1), jax.tree.map(jnp.float32, hypers_of(config)["agent"]))
    params = agent.actor(learner)
    states = [
        rollout.start(env, agent, jax.random.key(2), COPIES * rank + jnp.arange(COPIES, dtype=jnp.int32))
        for rank in range(2)
    ]
    inference = InferencePrograms(agent, LENGTH, False)
    known = jax.eval_shape(known_of, states[0])
    slots = inference.empty(2, jax.eval_shape(lambda: params), known)
    conclude, choose = jax.jit(inference.conclude), jax.jit(inference.choose)
    step = jax.jit(lambda state, action: advance(env, state, action))
    for rank, state in enumerate(states):
        slots = inference.greet(slots, jnp.int32(rank), known_of(state))
    served, steps = list(states), [0, 0]
    outcomes = {}
    for turn in ([0, 1], [1], [0], [1], [0, 1], [1], [0], [0, 1], [0], [1], [0], [1], [0, 1]):
        turn = [rank for rank in turn if steps[rank] < LENGTH]
        if not turn:
            continue
        index = np.array([*turn, 2][: 2 if len(turn) > 1 else 1], np.int32)
        slots, actions = choose(params, slots, index)
        for place, rank in enumerate(turn):
            served[rank], outcomes[rank] = step(served[rank], actions[place])
            steps[rank] += 1
        came = jax.tree.map(lambda *x: jnp.stack(x), *(outcomes[rank] for rank in turn))
        slots = conclude(params, slots, index, came)
    assert steps == [LENGTH, LENGTH]
    for rank, state in enumerate(states):
        slots, (ended, trajectory, _, carry) = inference.finish(params, slots, jnp.int32(rank))
        final, expected, sums = rollout.unroll(env, agent, params, state, LENGTH)
        for ours, theirs in zip(jax.tree.leaves(trajectory), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(ended, sums)
        assert float(sums.number) > 0  # an episode ended on the way, and its memory was cleared
        for ours, theirs in zip(jax.tree.leaves(carry), jax.tree.leaves(final.carry), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(jax.random.key_data(served[rank].key), jax.random.key_data(final.key))
        np.testing.assert_allclose(served[rank].returns, final.returns)
