"""A simulated job: ranks, counters, and the measured half of the run.

An actor is busy while it steps its environments and packs; a learner while it takes unrolls, learns, reduces
and publishes; everything else is idle time. Ranks may share cores: then work queues for them, sleep does not.
A rank that spins while it waits uses a core like any other work, without benefit.
"""

from __future__ import annotations

import math
from typing import Any

from jaxrl_hpc.scaling.costs import Clock, Costs, JobPlan, SimulatedResult
from jaxrl_hpc.scaling.events import Barrier, EventStore, Process, Simulation, Station

SLICE = 3e-3  # time slice of a process on a core that others wait for


class SimulatedRank:
    """A process of the job: works on a core, sleeps, or is idle."""

    def __init__(self, simulation: Simulation, cores: Station) -> None:
        self.simulation, self.cores = simulation, cores
        self.busy = 0.0

    def work(self, seconds: float) -> Process:
        since = self.simulation.now
        yield from self.cores.use(seconds)
        self.busy += self.simulation.now - since

    def sleep(self, seconds: float) -> Process:
        if seconds:
            yield seconds
            self.busy += seconds

    def meet(self, barrier: Barrier, costs: Costs) -> Process:
        """Wait for others: idle, on a core or asleep."""
        if not costs.spins:
            before = self.simulation.now
            yield from barrier.wait()
            if self.simulation.now > before and costs.nap:
                yield costs.nap
            return
        meeting = barrier.meetings
        if barrier.come():
            return
        while barrier.meetings == meeting:
            yield from self.cores.use(SLICE)


class SimulatedJob:
    """Base of all flows: ranks, counters, and the measured half of the run."""

    def __init__(self, costs: Costs, plan: JobPlan, unrolls: int, seed: int) -> None:
        self.costs, self.plan, self.simulation = costs, plan, Simulation()
        self.clock = Clock(costs.spread, seed)
        self.cores = Station(self.simulation, costs.cores)
        self.learners = [SimulatedRank(self.simulation, self.cores) for _ in range(plan.learners)]
        self.actors = [SimulatedRank(self.simulation, self.cores) for _ in range(plan.actors)]
        self.stations: dict[str, Station] = {}  # other resources besides ranks and cores
        self.version = 0
        self.updates = 0
        self.unrolls = 0
        self.goal = unrolls
        self.lags: list[int] = []
        self._before: tuple[float, ...] | None = None

    def act(self, rank: SimulatedRank) -> Process:
        """One unroll."""
        yield from rank.work(self.clock.vary(self.costs.acting))
        yield from rank.sleep(self.clock.vary(self.costs.waiting))

    def update(self, rank: SimulatedRank, unrolls: int = 1) -> Process:
        """Learn from so many unrolls."""
        yield from rank.work(self.clock.vary(unrolls * self.costs.update))
        yield from rank.sleep(unrolls * self.costs.accelerator)

    def learned(self, version: int) -> None:
        """Record that an unroll made with parameters of this version has been learned from."""
        self.unrolls += 1
        if self.unrolls > self.goal // 2:
            self.lags.append(self.version - version)
        if self.unrolls == self.goal // 2:
            self._before = self._totals()
        elif self.unrolls == self.goal:
            self.simulation.halt()

    def _totals(self) -> tuple[float, ...]:
        learners = sum(rank.busy for rank in self.learners)
        actors = sum(rank.busy for rank in self.actors)
        others = [station.work for station in self.stations.values()]
        return (self.simulation.now, self.updates, self.unrolls, learners, actors, self.cores.work, *others)

    def outcome(self) -> SimulatedResult:
        assert self._before is not None, "the simulation stood still before its middle"
        elapsed, updates, unrolls, learners, actors, cores, *others = (
            after - before for after, before in zip(self._totals(), self._before, strict=True)
        )
        used = {"learners": learners / elapsed / max(1, len(self.learners))}
        if self.actors:
            used["actors"] = actors / elapsed / len(self.actors)
        if self.costs.cores:
            used["cores"] = cores / elapsed / self.costs.cores
        for (name, station), work in zip(self.stations.items(), others, strict=True):
            used[name] = work / elapsed / max(1, station.places)
        return SimulatedResult(
            steps_per_second=unrolls * self.costs.length * self.costs.copies / elapsed,
            updates_per_second=updates / elapsed,
            actor_idle=max(0.0, 1 - used["actors"]) if self.actors else 0.0,
            learner_idle=max(0.0, 1 - used["learners"]),
            lag=sum(self.lags) / max(1, len(self.lags)),
            lag_max=max(self.lags, default=0),
            bottleneck=max(used, key=lambda name: used[name]),
            utilisation=used,
        )

    def reduce_seconds(self, ranks: int) -> float:
        """A mean of gradients over the given ranks."""
        return math.ceil(math.log2(ranks)) * self.costs.reduce.time(self.costs.params) if ranks > 1 else 0.0

    def send(self, store: EventStore, item: Any, seconds: float) -> None:
        """An item arrives after the given seconds."""
        self.simulation.start(_arrive(store, item), seconds)


def _arrive(store: EventStore, item: Any) -> Process:
    store.put_now(item)
    return
    yield
