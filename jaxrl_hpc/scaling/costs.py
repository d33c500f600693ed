"""Costs of the parts of a job, and its layout: the input of the discrete-event model (workflow_models.py).

Costs are measured (measure.py) or fitted to whole runs (scripts/studies/workflows.py). Times are seconds.
"""

from __future__ import annotations

import random
from typing import Literal, NamedTuple

from jaxrl_hpc.scaling.model import LatencyBandwidth

Rule = Literal["lock", "hogwild", "accumulate", "server"]
WORKFLOWS = ("sharded", "async", "rma", "rma_queue", "central_inference", "parameter_server", "gossip")
FREE = LatencyBandwidth(0.0, 1e30)


class Costs(NamedTuple):
    """Costs of the parts of a run."""

    length: int  # T, steps of an unroll
    copies: int  # B of an actor
    compute: float  # one step of an actor's copies, on a core, without the policy
    sleep: float  # one step of an actor's copies, waiting without using a core
    inference: LatencyBandwidth  # the policy, by number of observations: latency + number / bandwidth
    update: float  # learning from one unroll, all K updates, on a core
    handle: float = 0.0  # a core's time to pack or to take a message
    message: LatencyBandwidth = FREE  # by bytes, between two ranks
    copy: LatencyBandwidth = FREE  # by bytes, into or out of a window of another rank
    reduce: LatencyBandwidth = FREE  # by bytes, of an allreduce between two ranks; more of them: × log2
    atomic: float = 0.0  # one atomic operation on another rank's memory
    params: int = 0  # bytes of parameters
    unroll: int = 0  # bytes of an unroll
    observation: int = 0  # bytes that an environment rank sends per step
    spread: float = 0.0  # coefficient of variation of an unroll's time
    cores: int = 0  # shared by all ranks; 0: one per rank
    accelerator: float = 0.0  # learning from one unroll, without using a core
    spins: bool = False  # learners that wait for each other spin on a core; else they sleep
    nap: float = 0.0  # delay with which a sleeping rank detects the end of its wait

    @property
    def acting(self) -> float:
        """A core's time for an unroll."""
        return self.length * (self.compute + self.inference.time(self.copies))

    @property
    def waiting(self) -> float:
        """Other time of an unroll."""
        return self.length * self.sleep


class JobPlan(NamedTuple):
    """The layout and connections of a job."""

    workflow: str
    learners: int  # also workers of sharded, parameter_server and gossip, servers of central_inference
    actors: int = 0  # none for sharded, parameter_server and gossip: workers act themselves
    in_flight: int = 2  # unrolls under way per actor, items of a ring
    batch: int = 1  # unrolls of an iteration
    selection: Literal["random", "range"] = "range"  # of windows, for rma
    requests: int = 0  # observations that central inference waits for; 0: all of a server's ranks
    deadline: float = 1e-3  # that it waits at most, from the first one on
    local_updates: int = 1  # H
    rule: Rule = "lock"
    servers: int = 1

    @property
    def ranks(self) -> int:
        extra = self.servers if self.workflow == "parameter_server" and self.rule == "server" else 0
        return self.learners + self.actors + extra


class SimulatedResult(NamedTuple):
    """A job in its steady state."""

    steps_per_second: float  # of the environment, that were learned from
    updates_per_second: float  # iterations or exchanges, of all learners together
    actor_idle: float  # share of its time that an actor waits for others
    learner_idle: float
    lag: float  # versions between acting and learning, mean
    lag_max: int
    bottleneck: str  # the busiest resource
    utilisation: dict[str, float]  # utilisation of all resources


class Clock:
    """Varying times: gamma distributed around their mean."""

    def __init__(self, spread: float, seed: int) -> None:
        self._shape = 1 / spread**2 if spread else 0.0
        self._random = random.Random(seed)

    def vary(self, seconds: float) -> float:
        if not self._shape or not seconds:
            return seconds
        return seconds * self._random.gammavariate(self._shape, 1 / self._shape)

    def pick(self, number: int) -> int:
        return self._random.randrange(number)
