"""Against SciPy, by hand, and where intervals must be absent."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from jaxrl_hpc.ops.comparison import (
    difference,
    normalised,
    performance_profile,
    probability_of_improvement,
)
from jaxrl_hpc.ops.statistics import interquartile_mean


def seeds(mean: float, count: int = 8, key: int = 0) -> np.ndarray:
    return mean + np.random.default_rng(key).normal(size=count)


def test_probability_of_improvement_is_mann_whitneys() -> None:
    one, other = np.round(seeds(0.5, 9), 1), np.round(seeds(0, 12, 1), 1)
    found = probability_of_improvement([(one, other)])
    assert found.value == pytest.approx(stats.mannwhitneyu(one, other).statistic / (9 * 12))
    assert 0 <= found.low < found.value < found.high <= 1
    back = probability_of_improvement([(other, one)])
    assert back.value == pytest.approx(1 - found.value)


def test_probability_of_improvement_averages_environments_and_draws_within_them() -> None:
    """Always better in one, always worse in the other: half, and no resample changes that."""
    high, low = np.arange(5.0) + 10, np.arange(5.0)
    found = probability_of_improvement([(high, low), (low, high)])
    assert found == (0.5, 0.5, 0.5)


def test_difference_is_that_of_the_scores() -> None:
    one, other = seeds(3.0), seeds(0.0, 12, 1)
    found = difference(one, other)
    assert found.value == pytest.approx(float(interquartile_mean(one) - interquartile_mean(other)))
    assert 0 < found.low < found.value < found.high


def test_few_seeds_have_values_and_no_interval() -> None:
    for found in (difference([4.0, 2.0], seeds(0)), probability_of_improvement([([4.0, 2.0], seeds(0))])):
        assert np.isfinite(found.value) and np.isnan(found.low) and np.isnan(found.high)
    assert difference([4.0, 2.0], [1.0, 1.0]).value == 2.0
    profile = performance_profile(np.arange(4.0), np.array([1.5]))
    assert profile.share == [0.5] and np.isnan(profile.low).all()


def test_profile_counts_runs_above_each_threshold() -> None:
    values, thresholds = np.array([1.0, 2.0, 2.0, 3.0, 9.0]), np.array([0.0, 1.0, 2.0, 5.0, 9.0])
    profile = performance_profile(values, thresholds)
    np.testing.assert_allclose(profile.share, [1.0, 0.8, 0.4, 0.2, 0.0])
    assert np.all(profile.low <= profile.share) and np.all(profile.share <= profile.high)
    apart = np.array([0.0] * 5 + [10.0] * 5)
    drawn = performance_profile(apart, np.array([5.0]), strata=np.repeat([0, 1], 5))
    assert (drawn.low, drawn.share, drawn.high) == (0.5, 0.5, 0.5)


def test_normalised_figures_span_zero_to_one() -> None:
    one, other = normalised([np.array([10.0, 20.0]), np.array([15.0, 30.0])])
    np.testing.assert_allclose([*one, *other], [0.0, 0.5, 0.25, 1.0])
    np.testing.assert_allclose(normalised([np.array([3.0]), np.array([3.0])])[0], [0.0])


@pytest.mark.parametrize("pairs", [[], [([1.0], [])]])
def test_environments_without_runs_are_refused(pairs) -> None:
    with pytest.raises(ValueError, match="at least one"):
        probability_of_improvement(pairs)
