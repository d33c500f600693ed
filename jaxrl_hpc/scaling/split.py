"""The number of learners and actors in a job with the highest modelled throughput.

With u seconds of a learner and a seconds of an actor per unroll, L learners and A actors give min(A/a, L/u):
acting and learning are balanced where L / A = u / a. The discrete-event model (workflow_models.py) adds
messages, the reduction among learners, and shared cores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxrl_hpc.scaling.costs import Costs, JobPlan, SimulatedResult
from jaxrl_hpc.scaling.workflow_models import simulate


class RankSplit(NamedTuple):
    learners: int
    actors: int
    outcome: SimulatedResult


def balanced(costs: Costs, ranks: int) -> int:
    """Learners by the two rates alone."""
    acting = costs.acting + costs.waiting
    return min(max(1, round(ranks * costs.update / (costs.update + acting))), ranks - 1)


def evaluate(costs: Costs, plan: JobPlan, learners: int, ranks: int, shared: bool) -> RankSplit:
    """One split. Learners that share batches work on a part of each and reduce."""
    split = plan._replace(learners=learners, actors=ranks - learners)
    if shared:
        one = costs._replace(
            update=costs.update / learners + costs.reduce.time(costs.params) * (learners > 1)
        )
        return RankSplit(learners, ranks - learners, simulate(one, split._replace(learners=1)))
    return RankSplit(learners, ranks - learners, simulate(costs, split))


def recommend(
    costs: Costs, plan: JobPlan, ranks: int, shared: bool = False
) -> tuple[RankSplit, list[RankSplit]]:
    """The best split and all evaluated ones, by learners. Hill climbing from the balance of rates."""
    most = ranks - 1 if shared else ranks // 2  # each learner needs an actor of its own
    known: dict[int, RankSplit] = {}

    def speed(learners: int) -> float:
        if learners not in known:
            known[learners] = evaluate(costs, plan, learners, ranks, shared)
        return known[learners].outcome.steps_per_second

    uphill = _climb(speed, min(balanced(costs, ranks), most), most, max(1, ranks // 8))
    best = max(1, uphill, key=lambda n: (speed(n), -n))  # one learner alone need not reduce
    return known[best], [known[learners] for learners in sorted(known)]


def _climb(speed: Callable[[int], float], start: int, most: int, stride: int) -> int:
    """Position of the maximum, searched with halved strides; the smaller one of equal values."""
    best = start
    while stride:
        near = [n for n in (best - stride, best, best + stride) if 1 <= n <= most]
        found = max(near, key=lambda n: (speed(n), -n))
        if found == best:
            stride //= 2
        best = found
    return best


def table(best: RankSplit, choices: list[RankSplit]) -> str:
    """Markdown."""
    lines = [
        "| learners + actors | steps/s | actors idle | learners idle | lag | busiest | remark |",
        "|---|---|---|---|---|---|---|",
    ]
    for choice in choices:
        result = choice.outcome
        lines.append(
            f"| {choice.learners} + {choice.actors} | {result.steps_per_second:,.0f} "
            f"| {100 * result.actor_idle:.0f} % | {100 * result.learner_idle:.0f} % | {result.lag:.1f} "
            f"| {result.bottleneck} | {'**recommended**' if choice == best else ''} |"
        )
    return "\n".join(lines)


def report(costs: Costs, best: RankSplit, choices: list[RankSplit]) -> dict[str, Any]:
    """The recommendation as plain data."""
    return {
        "costs": {k: v._asdict() if hasattr(v, "_asdict") else v for k, v in costs._asdict().items()},
        "recommended": {"learners": best.learners, "actors": best.actors},
        "splits": [{"learners": c.learners, "actors": c.actors, **c.outcome._asdict()} for c in choices],
    }
