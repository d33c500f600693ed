"""What reference controllers reach: the specification's table within its noise."""

import jax
import pytest

from jaxrl_hpc.envs.exabooster import ExaBoosterConfig, make
from jaxrl_hpc.envs.exabooster.policies import RULES, improvement

EPISODES = 4096
SHORT = {"zero": 0.68, "hold": 0.36, "regulator": 1.0, "pi": 1.13, "pi_tuned": 1.17, "minimum_variance": 1.20}
SHORT |= {"with_drift": 1.45, "with_phase": 1.86, "clairvoyant": 2.03}
LONG = {"zero": 0.66, "regulator": 1.0, "pi": 1.15, "pi_tuned": 1.21, "minimum_variance": 1.21}
LONG |= {"with_drift": 1.46, "with_phase": 1.89, "clairvoyant": 2.06}
CONTINUOUS = "ExaBoosterContinuous-v0"
SLOW = pytest.mark.slow
LIMITED = [
    ({}, {"clairvoyant": 1.89, "with_phase": 1.78}, {"clairvoyant": 1.97, "with_phase": 1.83}),
    (
        {"name": CONTINUOUS},
        {"clairvoyant": 1.97, "with_phase": 1.82},
        {"clairvoyant": 2.03, "with_phase": 1.87},
    ),
    pytest.param({"actions": "fixed7"}, {"clairvoyant": 1.15}, {"clairvoyant": 1.20}, marks=SLOW),
    pytest.param(
        {"name": CONTINUOUS, "delta_max": 0.0078}, {"clairvoyant": 1.38}, {"clairvoyant": 1.43}, marks=SLOW
    ),
]


def _check(table, limited, **settings):
    env, params = make(ExaBoosterConfig(**settings))
    for name, expected in table.items():
        value, error = improvement(env, params, RULES[name], jax.random.key(7), EPISODES, limited)
        # The table has two digits and noise of its own, of the same size as ours.
        assert value == pytest.approx(expected, abs=0.01 + 3 * error), name


@pytest.mark.full
def test_free_rules():
    _check(SHORT, limited=False)


@pytest.mark.parametrize("settings,short,long", LIMITED)
def test_rules_through_actions(settings, short, long):
    _check(short, limited=True, **settings)


@pytest.mark.slow
def test_free_rules_over_a_supercycle():
    _check(LONG, limited=False, horizon=901)


@pytest.mark.slow
@pytest.mark.parametrize("settings,short,long", LIMITED)
def test_rules_through_actions_over_a_supercycle(settings, short, long):
    _check(long, limited=True, horizon=901, **settings)


def test_knowledge_pays_on_every_plant():
    env, params = make(ExaBoosterConfig(domain_randomisation=True))
    factors = [improvement(env, params, RULES[n], jax.random.key(1), EPISODES)[0] for n in list(SHORT)[-4:]]
    assert factors == sorted(factors) and factors[-1] > 1.7
