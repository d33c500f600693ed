"""Statistics of workers that meet are those of all that any of them saw."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.ops import running_stats
from jaxrl_hpc.workflows.parameter_server.merge_statistics import merged, reconcile


def see(statistics, values):
    return running_stats.merge(statistics, running_stats.sums(statistics, jnp.asarray(values, jnp.float32)))


def meet(workers):
    """[(now, met)] of all workers -> what each of them knows then."""
    sums, found = [], []

    def listen(value):
        sums.append(value)
        return value

    for now, met in workers:
        merged(now, met, workers[0][1], listen, 1)
    each = len(sums) // len(workers)
    totals = [sum(sums[i::each]) for i in range(each)]
    for now, met in workers:
        asked = iter(totals)
        found.append(merged(now, met, workers[0][1], lambda _, asked=asked: next(asked), len(workers)))
    return found


def test_three_workers_and_one_that_joins_later():
    rng = np.random.default_rng(0)
    empty = {"seen": running_stats.empty((2,)), "error": jnp.float32(0)}
    known = [(empty, empty)] * 3
    seen = []
    for chunk in range(4):
        if chunk == 2:
            known = [*known, (empty, empty)]
        moved = []
        for worker, (now, met) in enumerate(known):
            # away from zero, and workers see different things
            data = 50.0 + worker + rng.normal(size=(30 + 7 * worker, 2)) * [1.0, 9.0]
            seen.append(data)
            moved.append(({"seen": see(now["seen"], data), "error": jnp.float32(worker)}, met))
        found = meet(moved)
        known = [(each, each) for each in found]
        everything = np.concatenate(seen)
        for each in found:
            assert each["seen"].number == len(everything)
            np.testing.assert_allclose(each["seen"].mean, everything.mean(0), rtol=1e-5)
            np.testing.assert_allclose(running_stats.variance(each["seen"]), everything.var(0), rtol=1e-3)
            np.testing.assert_allclose(each["error"], np.mean(range(len(known))))


def test_alone_nothing_is_touched():
    now, met = {"seen": see(running_stats.empty(()), [1.0, 2.0])}, {"seen": running_stats.empty(())}
    assert reconcile(SimpleNamespace(size=1), now, met) is now
