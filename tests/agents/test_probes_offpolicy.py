"""What the off-policy agents must get right first, on environments whose values are known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_hpc import rollout
from jaxrl_hpc.config import from_dict, registry
from jaxrl_hpc.runtime.build import build, hypers_of

GAMMA = 0.7  # so that values of endless episodes stay small and are learned soon
DISCRETE: dict[str, Any] = {
    "network": {"hidden": [16]},
    "learning_rate": 5e-3,
    "gamma": GAMMA,
    "batch_size": 32,
    "target_every": 0,
    "target_rate": 0.05,
    "epsilon_end": 0.5,
}
CONTINUOUS: dict[str, Any] = {
    "network": {"hidden": [32]},
    "learning_rate": 5e-3,
    "batch_size": 64,
    "target_rate": 0.05,
    "noise_scale": 0.3,
    "gamma": GAMMA,
}
SOFT = {name: value for name, value in CONTINUOUS.items() if name != "noise_scale"} | {
    "actor_learning_rate": 3e-3,
    "learn_temperature": False,  # so small that values are those of the rewards
    "temperature": 1e-3,
}
AGENTS: dict[str, dict[str, Any]] = {
    "dqn": DISCRETE,
    "dqn n-step": DISCRETE | {"n_step": 3, "dueling": True},
    "dqn c51": DISCRETE | {"returns": "c51", "atoms": 41, "return_low": -4.0, "return_high": 4.0},
    "dqn quantile": DISCRETE | {"returns": "quantile", "atoms": 16, "n_step": 2},
    "dqn noisy": DISCRETE | {"noisy": True, "epsilon_start": 0.0, "epsilon_end": 0.0},
    "recurrent_dqn": DISCRETE | {"lstm": 8, "burn_in": 1, "length": 3, "n_step": 2},
    "dyna_q": DISCRETE | {"planning_updates": 2, "n_step": 2, "model_hidden": [16]},
    "td3": CONTINUOUS,
    "ddpg": CONTINUOUS,
    "sac": SOFT,
    "sac ensemble": SOFT | {"critics": 4, "target_subset": 2, "policy_value": "mean", "n_step": 2},
    "iql": {"network": {"hidden": [32]}, "learning_rate": 5e-3, "batch_size": 64, "gamma": GAMMA}
    | {"target_rate": 0.05, "expectile": 0.5, "log_std": 0.0},
    "mbpo": SOFT | {"planning_updates": 2, "model_hidden": [16], "ensemble": 2},
    "mbpo_td3": CONTINUOUS | {"planning_updates": 2, "model_hidden": [16], "ensemble": 2},
    "sac crossq": {name: value for name, value in SOFT.items() if name != "target_rate"}
    | {"batch_norm": True, "adam_beta1": 0.5, "batch_size": 512},  # moments of few rows are noise
}


def train(agent: str, probe: str, updates: int = 1500) -> tuple[dict[str, float], float]:
    """Metrics of the last updates, and the mean return of greedy episodes."""
    replay = "prioritised" if agent == "recurrent_dqn" else "uniform"
    config = from_dict(
        {
            "agent": {"name": agent.split()[0], **AGENTS[agent]},
            "env": {"name": probe},
            "replay": {"name": replay, "capacity": 2048, "min_size": 64},
            "workflow": {"name": "fused", "num_envs": 4},
            "run": {"total_env_steps": 4 * updates},
        }
    )
    parts = build(config)
    flow = parts.workflow
    assert flow.warmup is not None

    hypers = jax.tree.map(jnp.float32, hypers_of(config))
    step = jax.jit(flow.step, donate_argnums=0)
    state = jax.jit(lambda key: flow.warmup(flow.init(key, hypers)))(jax.random.key(0))
    state, _ = step(state, jnp.int32(updates))
    state, metrics = step(state, jnp.int32(50))
    actor = parts.agent.actor(flow.learner(state))
    evaluate = jax.jit(lambda a: rollout.evaluate(parts.env, parts.agent, a, jax.random.key(9), 32).returns)
    returns = evaluate(actor)
    return {name: float(value) for name, value in metrics.items()}, float(np.mean(returns))


VALUES = {  # the mean over a batch of what is visited
    "ProbeValue": 1.0,
    "ProbeObservation": 0.0,  # of +1 and -1: the error shows that both are known
    "ProbeCredit": (GAMMA + 1) / 2,
    "ProbeTruncation": 1 / (1 - GAMMA),
}
QUICK = {("dqn n-step", "ProbeCredit"), ("td3", "ProbeBoth")}
FULL = {  # those that tell most; the others are slow
    ("dqn", "ProbeTruncation"),
    ("dqn n-step", "ProbeBoth"),
    ("dqn c51", "ProbeTruncation"),
    ("dqn c51", "ProbeBoth"),
    ("dqn quantile", "ProbeCredit"),
    ("dqn quantile", "ProbeBoth"),
    ("dqn noisy", "ProbeBoth"),
    ("recurrent_dqn", "ProbeTruncation"),
    ("recurrent_dqn", "ProbeBoth"),
    ("dyna_q", "ProbeCredit"),
    ("dyna_q", "ProbeBoth"),
    ("td3", "ProbeCredit"),
    ("ddpg", "ProbeTruncation"),
    ("ddpg", "ProbeAction"),
    ("sac", "ProbeTruncation"),
    ("sac ensemble", "ProbeCredit"),
    ("sac", "ProbeBoth"),
    ("sac crossq", "ProbeBoth"),
    ("iql", "ProbeCredit"),
    ("mbpo", "ProbeBoth"),
    ("mbpo_td3", "ProbeCredit"),
}


def pairs(agents: tuple[str, ...], probes: Iterable[str]) -> list[Any]:
    """All of them; continuous agents get the continuous twins."""

    def marks(agent: str, probe: str) -> list[Any]:
        if (agent, probe) in QUICK:
            return []
        return [pytest.mark.full if (agent, probe) in FULL else pytest.mark.slow]

    return [pytest.param(agent, probe, marks=marks(agent, probe)) for agent in agents for probe in probes]


DISCRETE_ONES = ("dqn", "dqn n-step", "dqn c51", "dqn quantile", "recurrent_dqn", "dyna_q")
CONTINUOUS_ONES = ("td3", "ddpg", "sac", "sac ensemble", "sac crossq", "mbpo", "mbpo_td3")
VALUES_ONLY = ("iql",)  # imitates what it sees: best actions are probed in test_offline.py


def test_every_agent_that_replays_is_probed() -> None:
    on_policy = {"a2c", "ppo", "pqn"}  # test_probes_onpolicy.py, test_pqn.py
    assert {name.split()[0] for name in AGENTS} | on_policy == set(registry.AGENTS)


@pytest.mark.parametrize(("agent", "probe"), pairs(DISCRETE_ONES + CONTINUOUS_ONES + VALUES_ONLY, VALUES))
def test_values(agent: str, probe: str) -> None:
    value = VALUES[probe]
    metrics, _ = train(agent, probe + "Continuous" * (agent not in DISCRETE_ONES))
    tolerance = 0.05 * max(1.0, value)
    assert abs(metrics["q_value"] - value) < 2 * tolerance
    assert metrics["td_error"] < tolerance


@pytest.mark.parametrize(
    ("agent", "probe"), pairs((*DISCRETE_ONES, "dqn noisy"), ("ProbeAction", "ProbeBoth"))
)
def test_best_discrete_actions(agent: str, probe: str) -> None:
    _, best = train(agent, probe, updates=600)
    assert best == 1.0


@pytest.mark.parametrize(("agent", "probe"), pairs(CONTINUOUS_ONES, ("ProbeAction", "ProbeBoth")))
def test_best_continuous_actions(agent: str, probe: str) -> None:
    metrics, best = train(agent, probe + "Continuous")
    assert best > -0.01  # within 0.1 of the goal, 2 % of the range
    assert metrics["td_error"] < 0.1
