"""Against SciPy, exact enumeration and coverage."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from scipy import stats

from jaxrl_hpc.ops.statistics import (
    RESAMPLES,
    aggregate_curves,
    bootstrap_interval,
    common_grid,
    expanded_tail,
    interquartile_mean,
    score,
    score_text,
    t_quantile,
)


@pytest.mark.parametrize("runs", [1, 2, 3, 4, 5, 7, 8, 16, 33])
def test_interquartile_mean_is_scipys_trimmed_mean(runs: int) -> None:
    values = np.random.default_rng(runs).normal(size=(runs, 3))
    np.testing.assert_allclose(interquartile_mean(values), stats.trim_mean(values, 0.25), rtol=1e-12)
    np.testing.assert_allclose(
        interquartile_mean(values.T, axis=1), stats.trim_mean(values, 0.25), rtol=1e-12
    )


def test_interval_equals_scipys_up_to_resampling() -> None:
    values = np.random.default_rng(0).gamma(2.0, size=(16, 4))
    low, high = bootstrap_interval(values, resamples=20_000, expanded=False)
    reference = stats.bootstrap(
        (values,), lambda x, axis: stats.trim_mean(x, 0.25, axis=axis), method="percentile", axis=0,
        n_resamples=20_000, rng=np.random.default_rng(1),
    )  # fmt: skip
    width = reference.confidence_interval.high - reference.confidence_interval.low
    assert np.all(np.abs(low - reference.confidence_interval.low) < 0.03 * width)
    assert np.all(np.abs(high - reference.confidence_interval.high) < 0.03 * width)


def test_draws_follow_the_exact_distribution() -> None:
    """Four runs have 256 equally likely resamples: the share of means below x is known."""
    values = np.array([0.0, 1.0, 10.0, 100.0])
    exact = np.array([values[list(i)].mean() for i in itertools.product(range(4), repeat=4)])
    for confidence in (0.5, 0.8, 0.95):
        low, high = bootstrap_interval(
            values, lambda x, axis: x.mean(axis), confidence, resamples=100_000, expanded=False
        )
        tail = (1 - confidence) / 2
        assert abs(np.mean(exact < low + 1e-9) - tail) < 0.03  # the exact steps are up to 4/256 wide
        assert abs(np.mean(exact > high - 1e-9) - tail) < 0.03


@pytest.mark.parametrize("runs", [5, 8])
def test_interval_of_few_runs_covers_the_truth_as_often_as_it_says(runs: int) -> None:
    values = np.random.default_rng(5).normal(size=(runs, 1500))  # studies with a true mean of 0
    low, high = bootstrap_interval(values)
    plain_low, plain_high = bootstrap_interval(values, expanded=False)
    coverage = np.mean((low <= 0) & (high >= 0))
    assert 0.92 < coverage < 0.98
    assert np.mean((plain_low <= 0) & (plain_high >= 0)) < coverage - 0.02


def test_quantiles_of_t_are_scipys() -> None:
    for degrees in (1, 2, 3, 4, 7, 10, 31, 100):
        for confidence in (0.5, 0.9, 0.95):
            expected = stats.t.ppf((1 + confidence) / 2, degrees)
            assert t_quantile(degrees, confidence) == pytest.approx(expected, rel=1e-9)


def test_expansion_vanishes_with_many_runs_and_is_left_out_for_one() -> None:
    tails = [expanded_tail(np.zeros(runs)) for runs in (5, 8, 16, 1000)]
    assert tails == sorted(tails) and tails[0] < 0.002 and tails[-1] == pytest.approx(0.025, rel=0.02)
    assert expanded_tail(np.zeros(1)) == pytest.approx(0.025)
    n = 8
    expected = stats.norm.cdf(-np.sqrt(n / (n - 1)) * stats.t.ppf(0.975, n - 1))  # Hesterberg (2015)
    assert expanded_tail(np.zeros(n)) == pytest.approx(expected)
    pooled = np.repeat(np.arange(4), 8)
    expected = stats.norm.cdf(-np.sqrt(n / (n - 1)) * stats.t.ppf(0.975, 32 - 4))
    assert expanded_tail(pooled) == pytest.approx(expected)


def test_interval_is_a_function_of_the_values_and_degenerates() -> None:
    values = np.random.default_rng(3).normal(size=(8, 5))
    np.testing.assert_array_equal(bootstrap_interval(values), bootstrap_interval(values))
    alone = bootstrap_interval(values[:1])
    np.testing.assert_array_equal(alone, [values[0], values[0]])


def test_chunks_do_not_change_the_interval(monkeypatch) -> None:
    values = np.random.default_rng(3).normal(size=(8, 50))
    whole = bootstrap_interval(values)
    monkeypatch.setattr("jaxrl_hpc.ops.statistics._CHUNK", 1)
    np.testing.assert_array_equal(bootstrap_interval(values), whole)


def test_strata_keep_their_sizes() -> None:
    """Two tasks of very different scale: resampling within them leaves no variance between them."""
    values = np.array([0.0, 0.0, 0.0, 100.0, 100.0, 100.0])
    low, high = bootstrap_interval(values, lambda x, axis: x.mean(axis), strata=np.array([0, 0, 0, 1, 1, 1]))
    assert low == high == 50
    low, high = bootstrap_interval(values, lambda x, axis: x.mean(axis))
    assert low < 30 and high > 70


def test_curves_meet_on_a_common_axis() -> None:
    x = np.array([0.0, 10.0, 20.0])
    curve = aggregate_curves([x, x, x], [x, x + 3, x + 6])
    np.testing.assert_allclose(curve.value, x + 3)
    assert np.all(curve.low >= x) and np.all(curve.high <= x + 6) and np.all(curve.low < curve.high)
    # straight lines sampled at different times stay straight lines
    other = np.array([1.0, 4.0, 18.0])
    curve = aggregate_curves([x, other], [2 * x, 2 * other + 4])
    assert (curve.x[0], curve.x[-1]) == (1.0, 18.0)
    np.testing.assert_allclose(curve.value, 2 * curve.x + 2)
    np.testing.assert_allclose(aggregate_curves([x], [x**2], grid=np.array([5.0])).value, [50.0])
    np.testing.assert_array_equal(common_grid([np.array([1.0, 2.0]), np.array([2.0, 3.0])]), [2.0])


@pytest.mark.parametrize(
    "call",
    [
        lambda: interquartile_mean(np.zeros((0, 2))),
        lambda: bootstrap_interval(np.zeros(0)),
        lambda: bootstrap_interval(np.zeros(3), strata=np.zeros(2)),
        lambda: aggregate_curves([], []),
        lambda: aggregate_curves([np.zeros(2)], [np.zeros(3)]),
    ],
)
def test_bad_input_is_refused(call) -> None:
    with pytest.raises(ValueError, match=r"not defined|at least one|strata|curves"):
        call()


@pytest.mark.parametrize("runs", [1, 2, 4])
def test_few_runs_have_a_mean_and_a_range(runs: int) -> None:
    """Four runs have a quarter that an IQM would leave out: the worst one of them must count."""
    values = np.array([-900.0, -140.0, -130.0, -150.0])[:runs]
    assert score(values) == (values.mean(), values.min(), values.max())
    assert "IQM" not in score_text(runs)


def test_enough_runs_have_an_iqm() -> None:
    values = np.arange(8.0)
    found = score(values)
    assert found.value == interquartile_mean(values)
    assert (found.low, found.high) == bootstrap_interval(values)
    pooled = score(values, np.repeat([0, 1], 4))
    assert pooled == (3.5, 0.0, 7.0)  # four seeds in an environment are few
    assert score_text(8) == "IQM, 95 % interval over 8 seeds"


def test_many_runs_are_resampled_in_blocks():
    """Whole, these take 320 MB; a million episodes of an evaluation took 30 GB."""
    values = np.random.default_rng(0).normal(size=10_000)
    tracemalloc.start()
    try:
        blocks = bootstrap_interval(values, np.mean)
        assert tracemalloc.get_traced_memory()[1] < 150e6
    finally:
        tracemalloc.stop()
    index = np.random.default_rng(0).choice(np.arange(3000), (RESAMPLES, 3000))
    ends = [100 * expanded_tail(np.zeros(3000)), 100 * (1 - expanded_tail(np.zeros(3000)))]
    whole = np.percentile(values[:3000][index].mean(1), ends)
    np.testing.assert_array_equal(bootstrap_interval(values[:3000], np.mean), whole)
    assert blocks[0] < values.mean() < blocks[1]
