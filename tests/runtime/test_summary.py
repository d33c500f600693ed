"""A seed's score is its mean over episodes; what an interval is over is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxrl_hpc.rollout import Evaluation
from jaxrl_hpc.runtime.summary import describe, spread_over_seeds
from jaxrl_hpc.types import HostHooks


class Parts:
    class env:
        host = HostHooks()


def evaluation(returns: list[float]) -> Evaluation:
    values: Any = np.array(returns)
    return Evaluation(values, np.ones_like(values), np.ones(len(returns), bool), {})  # type: ignore[arg-type]


def spread(*seeds: list[float]) -> dict[str, Any]:
    parts: Any = Parts
    results = [evaluation(returns) for returns in seeds]
    return spread_over_seeds(parts, [describe(parts, found) for found in results], results)


def test_a_single_seed_does_not_leave_its_worst_episodes_out() -> None:
    returns = [-130.0] * 30 + [-1000.0] * 10
    found = spread(returns)
    assert found["eval_return_score"] == pytest.approx(np.mean(returns))
    low, high = found["eval_return_interval"]
    assert low < found["eval_return_score"] < high
    assert found["eval_spread"] == "mean, 95 % interval over 40 episodes of one seed"


def test_few_seeds_have_a_mean_and_a_range() -> None:
    found = spread([0.0, 2.0], [3.0, 5.0], [10.0, 10.0])
    assert found["eval_return_score"] == pytest.approx(5.0)
    assert found["eval_return_interval"] == [1.0, 10.0]
    assert found["eval_spread"] == "mean, range of 3 seeds"


def test_seeds_count_with_their_means() -> None:
    seeds = [[float(i), float(i) + 2, float(i) + 100] for i in range(8)]
    found = spread(*seeds)
    assert found["eval_return_score"] == pytest.approx(np.mean([np.mean(s) for s in seeds[2:6]]))
    assert found["eval_spread"] == "IQM, 95 % interval over 8 seeds"
