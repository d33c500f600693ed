"""The simulation against queues whose answers are known, and flows against what must hold of them."""

import random

import pytest

from jaxrl_hpc.scaling.costs import Costs, JobPlan
from jaxrl_hpc.scaling.events import Barrier, EventStore, Simulation, Station
from jaxrl_hpc.scaling.model import LatencyBandwidth
from jaxrl_hpc.scaling.workflow_models import ActorLearnerModel, simulate

UNIT = Costs(length=1, copies=1, compute=0.0, sleep=0.0, inference=LatencyBandwidth(1.0, 1e30), update=1.0)


def queue_of_strangers(arrivals, services, places=1):
    """Mean wait in the queue of an open system."""
    simulation = Simulation()
    counter = Station(simulation, places)

    def source():
        for gap, service in zip(arrivals, services, strict=True):
            yield gap
            simulation.start(counter.use(service))

    simulation.start(source())
    simulation.run()
    assert counter.served == len(services) and counter.taken == 0
    assert counter.work == pytest.approx(sum(services))
    return counter.waited / counter.served


def test_exponential_queue_waits_as_long_as_theory_says():
    rng = random.Random(3)
    number, arriving, serving = 60_000, 0.7, 1.0
    waited = queue_of_strangers(
        [rng.expovariate(arriving) for _ in range(number)], [rng.expovariate(serving) for _ in range(number)]
    )
    assert waited == pytest.approx(arriving / (serving - arriving), rel=0.08)  # rho / (mu - lambda)


def test_two_places_wait_less_erlang_c():
    rng = random.Random(4)
    number, load = 60_000, 1.4
    waited = queue_of_strangers(
        [rng.expovariate(load) for _ in range(number)], [rng.expovariate(1.0) for _ in range(number)], 2
    )
    busy = load / 2
    all_taken = load**2 / 2 / (1 - busy) / (1 + load + load**2 / 2 / (1 - busy))
    assert waited == pytest.approx(all_taken / (2 - load), rel=0.1)


def test_regular_queue_never_waits_until_it_must():
    assert queue_of_strangers([1.0] * 500, [1.0] * 500) == 0
    assert queue_of_strangers([1.0] * 500, [1.5] * 500) == pytest.approx(0.5 * 499 / 2)


def test_bounded_store_keeps_order_and_loses_nothing():
    simulation, rng = Simulation(), random.Random(5)
    store, taken, deepest = EventStore(simulation, 3), [], 0

    def producer(first):
        nonlocal deepest
        for i in range(200):
            yield from store.put((first, i))
            deepest = max(deepest, len(store.items))
            yield rng.random()

    def consumer():
        while len(taken) < 400:
            taken.append((yield from store.get()))
            yield 0.7 * rng.random()

    for first in (0, 1):
        simulation.start(producer(first))
    simulation.start(consumer())
    simulation.run()
    assert deepest == 3 and store.given == store.taken == len(taken) == 400
    for first in (0, 1):
        assert [i for f, i in taken if f == first] == list(range(200))


def test_barrier_waits_for_the_slowest():
    simulation, passed = Simulation(), []
    barrier = Barrier(simulation, 3)

    def walker(seconds):
        for _ in range(4):
            yield seconds
            yield from barrier.wait()
            passed.append(simulation.now)

    for seconds in (0.5, 1.0, 2.0):
        simulation.start(walker(seconds))
    simulation.run()
    assert passed == [2.0] * 3 + [4.0] * 3 + [6.0] * 3 + [8.0] * 3


@pytest.mark.parametrize("workflow", ["async", "rma", "rma_queue"])
@pytest.mark.parametrize("actors, learners", [(1, 1), (3, 1), (8, 1), (6, 2), (12, 2)])
def test_closed_systems_give_what_their_slower_side_gives(workflow, actors, learners):
    """n actors of time u before a server of time s: min(n / u, 1 / s)."""
    costs = UNIT._replace(inference=LatencyBandwidth(4.0, 1e30), update=1.0)
    outcome = simulate(costs, JobPlan(workflow, learners, actors), unrolls=2000)
    expected = min(actors / 4.0, learners / 1.0)
    assert outcome.steps_per_second == pytest.approx(expected, rel=0.01)
    assert 1 - outcome.actor_idle == pytest.approx(expected * 4.0 / actors, rel=0.02)
    assert 1 - outcome.learner_idle == pytest.approx(expected / learners, rel=0.02)
    assert outcome.bottleneck == ("actors" if actors / 4 < learners else "learners")


def test_ranks_that_share_cores_share_their_speed_but_not_their_sleep():
    costs = UNIT._replace(cores=2, update=0.0)
    for plan, work, sleep in ((JobPlan("async", 1, 6), 1.0, 0.0), (JobPlan("async", 1, 6), 1.0, 5.0)):
        outcome = simulate(
            costs._replace(inference=LatencyBandwidth(work, 1e30), sleep=sleep), plan, unrolls=2000
        )
        assert outcome.steps_per_second == pytest.approx(min(2 / work, 6 / (work + sleep)), rel=0.02)


def test_every_unroll_is_learned_from_once_or_under_way():
    costs = UNIT._replace(inference=LatencyBandwidth(2.0, 1e30), spread=0.5)
    job = ActorLearnerModel(costs, JobPlan("async", 2, 7, in_flight=3), 900, 1)
    job.simulation.run()
    waiting = sum(len(inbox.items) for inbox in job.inboxes)
    made, room = sum(inbox.given for inbox in job.inboxes), sum(len(r.items) for r in job.rooms)
    assert job.unrolls == 900
    assert made - waiting - job.unrolls in (0, 1, 2)  # in a learner's hands
    assert 0 <= 7 * 3 - room - waiting <= 7 + 2


def test_lag_is_what_waits_ahead():
    """A learner that is always behind has every place of every actor full before it: Little's law."""
    costs = UNIT._replace(inference=LatencyBandwidth(0.1, 1e30), update=1.0)
    for actors, places in ((2, 1), (4, 2), (8, 2)):
        outcome = simulate(costs, JobPlan("async", 1, actors, in_flight=places), unrolls=1000)
        assert outcome.lag == pytest.approx(actors * (places + 1), abs=1.01)
        assert outcome.lag_max <= actors * (places + 1) + 1


def test_sharded_waits_for_the_slowest_worker():
    even = simulate(UNIT, JobPlan("sharded", 8))
    assert even.steps_per_second == pytest.approx(8 / 2.0) and even.lag == 0
    uneven = simulate(UNIT._replace(spread=0.3), JobPlan("sharded", 8), unrolls=8000)
    assert uneven.steps_per_second < 0.85 * even.steps_per_second and uneven.learner_idle > 0.1


def test_parameter_servers_saturate_where_they_must():
    """A lock held for h: at most 1 / h exchanges; hogwild has none; S servers hold a part each."""
    costs = UNIT._replace(copy=LatencyBandwidth(0.1, 1e30), handle=0.1)
    limits = {"lock": 1 / 0.2, "accumulate": 1 / 0.1, "server": 1 / 0.2}
    for rule, limit in limits.items():
        few, many = (simulate(costs, JobPlan("parameter_server", n, rule=rule)) for n in (2, 100))
        assert few.updates_per_second < limit
        assert many.updates_per_second == pytest.approx(limit, rel=0.02), rule
    free = simulate(costs, JobPlan("parameter_server", 100, rule="hogwild"))
    assert free.updates_per_second == pytest.approx(100 / 2.2, rel=0.02) and free.lag == pytest.approx(99)
    rare = simulate(costs, JobPlan("parameter_server", 100, rule="lock", local_updates=10))
    assert rare.steps_per_second == pytest.approx(10 * limits["lock"], rel=0.02)
    big = costs._replace(copy=LatencyBandwidth(0.0, 1e3), handle=0.0, params=400)
    rates = [
        simulate(big, JobPlan("parameter_server", 50, rule="server", servers=s)).updates_per_second
        for s in (1, 4)
    ]
    assert rates[0] == pytest.approx(1 / 0.4, rel=0.02) and rates[1] == pytest.approx(4 / 0.4, rel=0.05)


def test_central_inference_is_bound_by_its_server_or_its_environments():
    base = Costs(
        length=4, copies=1, compute=0.0, sleep=1.0, inference=LatencyBandwidth(0.5, 10.0), update=0.0
    )
    outcome = simulate(base, JobPlan("central_inference", 1, 8, deadline=100.0), unrolls=400)
    assert outcome.steps_per_second == pytest.approx(8 / (1.0 + 0.5 + 0.8), rel=0.02)  # all in one batch
    slow = base._replace(update=4.0)
    outcome = simulate(slow, JobPlan("central_inference", 1, 8, deadline=100.0), unrolls=400)
    assert outcome.steps_per_second == pytest.approx(32 / (4 * (1.3) + 8 * 4.0 + 4 * 1.0), rel=0.1)
    assert outcome.learner_idle < 0.15 and outcome.actor_idle > 0.8


def test_results_do_not_depend_on_luck():
    costs = UNIT._replace(spread=0.4)
    first, same, other = (simulate(costs, JobPlan("rma", 2, 6), seed=seed) for seed in (0, 0, 1))
    assert first == same and first != other
    assert other.steps_per_second == pytest.approx(first.steps_per_second, rel=0.1)


def test_learners_that_spin_take_cores_from_actors_and_those_that_sleep_do_not():
    """Four learners on two cores: if they spin, the wait for the last is the actors' loss."""
    costs = Costs(
        length=1, copies=1, compute=0.02, sleep=0.0, inference=LatencyBandwidth(0.0, 1e30), update=0.0,
        accelerator=0.01, spread=0.6, cores=2,
    )  # fmt: skip
    plan = JobPlan("async", 4, 8)
    asleep = simulate(costs, plan, unrolls=2000)
    assert asleep.steps_per_second == pytest.approx(2 / 0.02, rel=0.1)  # what two cores give
    spinning = simulate(costs._replace(spins=True), plan, unrolls=2000)
    assert spinning.steps_per_second < 0.85 * asleep.steps_per_second
    late = simulate(costs._replace(cores=0, nap=0.1), plan, unrolls=2000)
    assert late.steps_per_second < simulate(costs._replace(cores=0), plan, unrolls=2000).steps_per_second


@pytest.mark.parametrize(
    "workflow, learners, actors", [("async", 4, 64), ("gossip", 8, 0), ("sharded", 8, 0)]
)
def test_updates_on_accelerators_need_no_core(workflow, learners, actors):
    costs = UNIT._replace(inference=LatencyBandwidth(1e-6, 1e30), update=0.0, accelerator=0.5, cores=1)
    outcome = simulate(costs, JobPlan(workflow, learners, actors), unrolls=2000)
    assert outcome.steps_per_second == pytest.approx(learners / 0.5, rel=0.02)
