"""Workflows as processes of a discrete-event simulation: throughput, idle time, lag, bottlenecks.

    outcome = simulate(Costs(...), JobPlan("async", learners=1, actors=120))

The run continues until a number of unrolls has been learned from, and its second half is measured. Not
modelled: the end of a run, evaluation, checkpoints, caches, and saturated networks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxrl_hpc.scaling.costs import Costs, JobPlan, Rule, SimulatedResult
from jaxrl_hpc.scaling.events import Barrier, EventStore, Process, Station
from jaxrl_hpc.scaling.job import SimulatedJob, SimulatedRank


class ActorLearnerModel(SimulatedJob):
    """async, rma, rma_queue: unrolls wait in a bounded number of places per actor."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        plan, simulation = self.plan, self.simulation
        self.two_sided = plan.workflow == "async"
        self.barrier = Barrier(simulation, plan.learners)
        self.inboxes = [EventStore(simulation) for _ in self.learners]
        self.rooms = [EventStore(simulation) for _ in self.actors]  # free places of each actor
        self.hungry = [0] * plan.learners  # two-sided: actors that have taken what they were sent last
        self.collisions = 0
        for number in range(plan.actors):
            for _ in range(plan.in_flight):
                self.rooms[number].put_now(None)
            simulation.start(self.actor(number))
        for number in range(plan.learners):
            simulation.start(self.learner(number))

    def actor(self, number: int) -> Process:
        rank, costs = self.actors[number], self.costs
        home = self.inboxes[number % self.plan.learners]
        transfer = costs.message.time(costs.unroll) if self.two_sided else 0.0
        while True:
            if self.two_sided:
                self.hungry[number % self.plan.learners] += 1
            else:
                yield from rank.work(costs.copy.time(costs.params))  # reads the newest itself
            version = self.version
            yield from self.act(rank)
            yield from rank.work(costs.handle)
            yield from self.rooms[number].get()
            self.send(home, (number, version), transfer)

    def take(self, number: int) -> Process:
        """An unroll for a learner, and the cost of taking it."""
        costs, rank = self.costs, self.learners[number]
        item = yield from self.inboxes[number].get()
        if self.two_sided:
            yield from rank.work(costs.handle)
        else:
            yield from rank.work(self.tries() * costs.atomic + costs.copy.time(costs.unroll))
        self.rooms[item[0]].put_now(None)
        return item[1]

    def tries(self) -> int:
        """Atomic operations per unroll: a claim; at random, again when another learner is at that window."""
        count = 1
        if self.plan.workflow == "rma" and self.plan.selection == "random":
            while self.clock.pick(self.plan.actors) < self.plan.learners - 1:
                self.collisions += 1
                count += 1
                if count > 1000:
                    break
        return count

    def learner(self, number: int) -> Process:
        plan, costs, rank = self.plan, self.costs, self.learners[number]
        reduce = self.reduce_seconds(plan.learners)
        while True:
            versions = []
            for _ in range(plan.batch):
                versions.append((yield from self.take(number)))
            yield from self.update(rank, plan.batch)
            for version in versions:
                self.learned(version)
            yield from rank.meet(self.barrier, costs)
            yield from rank.work(reduce)
            if number == 0:
                self.version += 1
                self.updates += 1
            if self.two_sided:
                hungry, self.hungry[number] = self.hungry[number], 0
                yield from rank.work(hungry * costs.handle)
            else:
                yield from rank.work(costs.copy.time(costs.params))


class ShardedModel(SimulatedJob):
    """All ranks act, learn and reduce together."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.barrier = Barrier(self.simulation, self.plan.learners)
        for number in range(self.plan.learners):
            self.simulation.start(self.worker(number))

    def worker(self, number: int) -> Process:
        rank, reduce = self.learners[number], self.reduce_seconds(self.plan.learners)
        while True:
            yield from self.act(rank)
            yield from self.update(rank)
            yield from rank.meet(self.barrier, self.costs)
            yield from rank.work(reduce)
            if number == 0:
                self.version += 1
                self.updates += 1
            self.learned(self.version)


class CentralInferenceModel(SimulatedJob):
    """Environment ranks send observations; a server answers them in batches and learns in between."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        plan, simulation = self.plan, self.simulation
        self.inboxes = [EventStore(simulation) for _ in self.learners]
        self.answers = [EventStore(simulation) for _ in self.actors]
        self.barrier = Barrier(simulation, plan.learners)
        for number in range(plan.actors):
            simulation.start(self.environment(number))
        for number in range(plan.learners):
            simulation.start(self.server(number))

    def environment(self, number: int) -> Process:
        rank, costs = self.actors[number], self.costs
        inbox, answers = self.inboxes[number % self.plan.learners], self.answers[number]
        transfer = costs.message.time(costs.observation)
        while True:
            self.send(inbox, number, transfer)
            yield from answers.get()
            yield from rank.work(self.clock.vary(costs.compute) + costs.handle)
            yield from rank.sleep(self.clock.vary(costs.sleep))

    def gather(self, number: int, wanted: int) -> Process:
        """Requests of one batch: as many as wanted, or those that came before the deadline."""
        inbox, simulation = self.inboxes[number], self.simulation
        found = [(yield from inbox.get())]
        end = simulation.now + self.plan.deadline
        while len(found) < wanted:
            if inbox.items:
                found.append((yield from inbox.get()))
            elif simulation.now < end:
                yield min(end - simulation.now, self.plan.deadline / 8)  # looks again
            else:
                break
        return found

    def server(self, number: int) -> Process:
        plan, costs, rank = self.plan, self.costs, self.learners[number]
        mine = len(range(number, plan.actors, plan.learners))
        wanted = min(plan.requests or mine, mine)
        steps: dict[int, int] = {}
        began: dict[int, int] = {}
        reduce = self.reduce_seconds(plan.learners)
        while True:
            found = yield from self.gather(number, wanted)
            yield from rank.work(len(found) * costs.handle + costs.inference.time(len(found) * costs.copies))
            for actor in found:
                self.send(self.answers[actor], None, costs.message.time(costs.observation))
                began.setdefault(actor, self.version)
                steps[actor] = steps.get(actor, 0) + 1
            whole = [actor for actor in found if steps[actor] % costs.length == 0]
            for actor in whole:
                yield from self.update(rank)
                yield from rank.meet(self.barrier, costs)
                yield from rank.work(reduce)
                self.version += 1
                self.updates += 1
                self.learned(began.pop(actor) + 1)


class ParameterServerModel(SimulatedJob):
    """Workers act and learn independently, and share only the parameters."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        plan, simulation = self.plan, self.simulation
        if plan.rule in ("lock", "accumulate"):
            self.stations["the lock" if plan.rule == "lock" else "the window"] = Station(simulation, 1)
        elif plan.rule == "server":
            self.shards = [Station(simulation, 1) for _ in range(plan.servers)]
            self.stations["servers"] = self.shards[0]
        for number in range(plan.learners):
            simulation.start(self.worker(number))

    def worker(self, number: int) -> Process:
        rank, plan = self.learners[number], self.plan
        exchange = self.exchange_by(plan.rule)
        version = 0
        while True:
            for _ in range(plan.local_updates):
                yield from self.act(rank)
                yield from self.update(rank)
            yield from exchange(rank)
            self.version += 1
            self.updates += 1
            for _ in range(plan.local_updates):
                self.learned(version + 1)
            version = self.version

    def exchange_by(self, rule: Rule) -> Callable[[SimulatedRank], Process]:
        rules = {"lock": self.by_lock, "hogwild": self.by_hogwild, "accumulate": self.by_accumulate}
        return rules.get(rule, self.by_server)

    def by_lock(self, rank: SimulatedRank) -> Process:
        """Read, add and write exclusively."""
        costs, station = self.costs, self.stations["the lock"]
        seconds = 2 * costs.atomic + 2 * costs.copy.time(costs.params)
        yield from station.enter()
        yield from rank.work(seconds)
        station.leave(seconds)

    def by_hogwild(self, rank: SimulatedRank) -> Process:
        yield from rank.work(2 * self.costs.copy.time(self.costs.params))

    def by_accumulate(self, rank: SimulatedRank) -> Process:
        """Element-wise sums are serialised at their target; reads are not."""
        costs, station = self.costs, self.stations["the window"]
        seconds = costs.atomic + costs.copy.time(costs.params)
        yield from station.enter()
        yield from rank.work(seconds)
        station.leave(seconds)
        yield from rank.work(costs.copy.time(costs.params))

    def by_server(self, rank: SimulatedRank) -> Process:
        """Each server takes its part; they work side by side, and the slowest is waited for."""
        costs, servers = self.costs, self.plan.servers
        part = costs.params / servers
        seconds = costs.handle + costs.copy.time(part)
        yield 2 * costs.message.time(part)
        done = EventStore(self.simulation)
        for shard in self.shards:
            self.simulation.start(self.serve(shard, seconds, done))
        for _ in self.shards:
            yield from done.get()

    def serve(self, shard: Station, seconds: float, done: EventStore) -> Process:
        yield from shard.enter()
        yield from self.cores.use(seconds)
        shard.leave(seconds)
        done.put_now(None)


class GossipModel(ParameterServerModel):
    """Workers write into their own memory and read a neighbour's: there is no shared resource to queue
    for."""

    def exchange_by(self, rule: Rule) -> Callable[[SimulatedRank], Process]:
        return self.by_hogwild


FLOWS: dict[str, type[SimulatedJob]] = {
    "sharded": ShardedModel,
    "async": ActorLearnerModel,
    "rma": ActorLearnerModel,
    "rma_queue": ActorLearnerModel,
    "central_inference": CentralInferenceModel,
    "parameter_server": ParameterServerModel,
    "gossip": GossipModel,
}


def simulate(costs: Costs, plan: JobPlan, unrolls: int | None = None, seed: int = 0) -> SimulatedResult:
    """The steady state of a job; by default over twenty unrolls per acting rank, four of many ranks."""
    acting = plan.actors or plan.learners
    enough = max(400, min(20 * acting, 8_000), 4 * acting)
    job = FLOWS[plan.workflow](costs, plan, unrolls or enough, seed)
    job.simulation.run()
    return job.outcome()
