"""Tiny environments with known optimal values, as first tests of an agent.

ProbeValue        one step, reward 1                                      V = 1
ProbeObservation  one step, reward = observation in {-1, 1}               V(o) = o
ProbeCredit       two steps, reward 1 at the end; observation 0 then 1    V(0) = gamma, V(1) = 1
ProbeAction       one step, reward 1 for action 1, -1 for action 0        best return 1
ProbeBoth         one step, reward 1 if action matches observation        best return 1
ProbeTruncation   reward 1 a step, never terminates, truncated after 2    V = 1 / (1 - gamma)

Each has a twin with a continuous action (ProbeValueContinuous …). Where the action matters the twins reward
-(a - goal)^2 instead; the goal is 0.5, or half the observation.
"""

from __future__ import annotations

from jaxrl_hpc.envs.gymnax import from_gymnax
from jaxrl_hpc.envs.names import Probe as ProbeName
from jaxrl_hpc.schema import ComponentConfig
from jaxrl_hpc.types import Env


class Config(ComponentConfig):
    """A probe environment."""

    name: ProbeName = "ProbeValue"


def make(config: Config) -> Env:
    from jaxrl_hpc.envs.probe_env import Probe

    probe = Probe(config.name)
    return from_gymnax(probe, probe.default_params, config.name)
