"""Several workers in turns give gradients to one optimiser: what has a period keeps it under lag."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.agents import dqn, sac, td3
from jaxrl_hpc.agents.normalise import NormaliseConfig
from jaxrl_hpc.networks.torso import NetworkConfig
from jaxrl_hpc.schema import traced_values
from jaxrl_hpc.types import EnvSpec
from jaxrl_hpc.workflows.parameter_server import exchange_schemes
from tests.agents.numpy_check import windows
from tests.tiers import quick

EXCHANGES = 12
BOUND = np.ones(2, np.float32)
FLOAT = np.dtype(np.float32)
CONTINUOUS = EnvSpec("made up", (3,), FLOAT, None, (2,), -BOUND, BOUND, 10)
DISCRETE = EnvSpec("made up", (3,), FLOAT, 4, (), None, None, 10)
SEEN = NormaliseConfig(observation=True)
SMALL = NetworkConfig(hidden=(8,))
AGENTS: dict[str, tuple[Any, Any, int]] = {  # module, config, updates per move of the slowest part
    "td3": (td3, td3.Config(network=SMALL), 2),
    "td3-3": (td3, td3.Config(network=SMALL, policy_delay=3, normalise=SEEN), 3),
    "redq": (sac, sac.Config(network=SMALL, critics=3, target_subset=2, policy_delay=3), 3),
    "dqn": (dqn, dqn.Config(network=SMALL, target_every=4), 4),
}


def slowest(name: str, central: exchange_schemes.CentralLearner) -> Any:
    """The part that moves once in a period."""
    return central.params["policy"] if name == "redq" else central.target


def flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])


@pytest.mark.parametrize("name", quick(AGENTS, ["td3-3", "dqn"]))
def test_periods_are_kept_by_workers_in_turns(name: str) -> None:
    module, config, period = AGENTS[name]
    spec = DISCRETE if module is dqn else CONTINUOUS
    agent = module.make(config, spec, num_envs=4)
    hypers = {k: jnp.float32(v) for k, v in traced_values(config).items()}
    batch, key = windows(1, 8, 3, spec.num_actions or spec.action_shape), jax.random.key(1)
    shape = jax.eval_shape(agent.init, key, hypers)
    scheme = exchange_schemes.gradients(agent, shape, jax.eval_shape(agent.gradient, shape, batch, key)[0])
    fresh = jax.jit(scheme.agent.init)(jax.random.key(0), hypers)
    combine = scheme.combine(hypers, lambda number: 0.0)

    @jax.jit
    def work(central: exchange_schemes.CentralLearner, number: jax.Array) -> jax.Array:
        learner = scheme.install(fresh, central)
        for update in range(2):  # sums of gradients at the same parameters
            grads, _ = agent.gradient(learner, batch, jax.random.fold_in(key, 2 * number + update))
            learner = scheme.agent.apply(learner, grads)
        return scheme.change(learner, central, 2)

    for workers in (1, 2, 3, 4):
        stored = exchange_schemes.bytes_of(scheme, scheme.first(fresh))
        first = before = exchange_schemes.central_of(scheme, stored.copy())
        got, moves = [first] * workers, 0
        for number in range(EXCHANGES):
            change = work(got[number % workers], jnp.int32(number))
            combine(stored, exchange_schemes.change_of(scheme, change), number)
            now = exchange_schemes.central_of(scheme, stored.copy())
            if name.startswith("td3"):  # the policy and the targets move together
                assert (flat(now.params["policy"]) != flat(before.params["policy"])).any() == (
                    flat(now.target) != flat(before.target)
                ).any()
            moves += int((flat(slowest(name, now)) != flat(slowest(name, before))).any())
            got[number % workers] = before = now
        assert int(now.step) == EXCHANGES
        # all workers begin at step 0, so the first round may count it more than once
        assert abs(moves - EXCHANGES // period) <= -(-(workers - 1) // period), (workers, moves)
        moved = jax.tree.map(lambda a, b: (np.asarray(a) != np.asarray(b)).any(), first.params, now.params)
        assert all(jax.tree.leaves(moved))
