"""A2C and PPO on environments whose values and best returns are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc.agents.actor_critic import make_core
from tests.agents.onpolicy import config_of, parts_of, train

GAMMA = 0.9
COMMON = {
    "network": {"hidden": [16], "activation": "tanh"},
    "gamma": GAMMA,
    "learning_rate": 1e-2,
    "learning_rate_final": 0.0,
    "entropy_coef": 0.0,
    "max_grad_norm": 10.0,
}
AGENTS = {
    "a2c": COMMON | {"name": "a2c"},
    "ppo": COMMON | {"name": "ppo", "epochs": 2, "minibatches": 2},
}
VALUES = {  # observation -> value
    "ProbeValue": {0.0: 1.0},
    "ProbeObservation": {-1.0: -1.0, 1.0: 1.0},
    "ProbeCredit": {0.0: GAMMA, 1.0: 1.0},
    "ProbeTruncation": {0.0: 1 / (1 - GAMMA)},
}
GOALS = {  # observation -> best action
    "ProbeAction": {0.0: 1.0},
    "ProbeBoth": {-1.0: 0.0, 1.0: 1.0},
    "ProbeActionContinuous": {0.0: 0.5},
    "ProbeBothContinuous": {-1.0: -0.5, 1.0: 0.5},
}


MARKS = {  # those that tell most; the others are slow
    ("a2c", "ProbeTruncation"): (),
    ("ppo", "ProbeBothContinuous"): (),
    ("a2c", "ProbeBoth"): pytest.mark.full,
    ("ppo", "ProbeCredit"): pytest.mark.full,
}
PAIRS = [
    pytest.param(agent, env, marks=MARKS.get((agent, env), pytest.mark.slow), id=f"{agent}-{env}")
    for agent in AGENTS
    for env in VALUES | GOALS
]


@pytest.mark.parametrize(("agent", "env"), PAIRS)
def test_probe(agent, env):
    run_probe(AGENTS[agent], env)


@pytest.mark.full
def test_mixed_precision_learns_too():
    run_probe(AGENTS["ppo"] | {"network": COMMON["network"] | {"dtype": "bfloat16"}}, "ProbeBoth")


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"lstm": 8}, {"distribution": "tanh"}, {"state_std": True}])
@pytest.mark.parametrize("agent", AGENTS)
def test_probe_with_options(agent, options):
    run_probe(AGENTS[agent] | options, "ProbeCredit" if "lstm" in options else "ProbeBothContinuous")


def run_probe(settings, env):
    iterations = 600
    parts, hypers = parts_of(settings, env, num_envs=16, unroll_length=8, total=iterations * 128)
    learner, _ = train(parts, hypers, iterations)
    known = VALUES.get(env) or GOALS[env]
    obs = jnp.array(list(known), jnp.float32)[:, None]
    carry = parts.agent.carry(jnp.arange(len(known)))
    if env in GOALS:
        keys = jax.random.split(jax.random.key(0), len(known))
        action, _, _ = parts.agent.act(parts.agent.actor(learner), carry, obs, keys, True)
        np.testing.assert_allclose(np.asarray(action).reshape(-1), list(known.values()), atol=0.15)
        return
    core = make_core(config_of(settings), parts.env.spec)
    if settings.get("lstm"):
        starts = jnp.zeros((2, 1), bool)  # the probe's two observations, one after the other
        carry = jax.tree.map(lambda x: x[:1], carry)
        value = core.view(learner.params, obs[:, None], (carry, starts)).value
    else:
        value = core.view(learner.params, obs, ()).value
    np.testing.assert_allclose(np.asarray(value).reshape(-1), list(known.values()), rtol=0.06, atol=0.06)
