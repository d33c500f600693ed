"""Results of evaluations and parameters for summary.json."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_hpc.ops.statistics import bootstrap_interval, score, score_text
from jaxrl_hpc.rollout import Evaluation
from jaxrl_hpc.runtime.build import Parts
from jaxrl_hpc.runtime.seeds import SeedRunner
from jaxrl_hpc.types import PyTree


def describe(parts: Parts, evaluation: Evaluation) -> dict[str, Any]:
    """One lane's evaluation as scalars."""
    return {
        "eval_return": float(evaluation.returns.mean()),
        "eval_return_std": float(evaluation.returns.std()),
        "eval_length": float(evaluation.length.mean()),
        "eval_finished": float(evaluation.finished.mean()),
    } | summaries(parts, evaluation)


def summaries(parts: Parts, evaluation: Evaluation) -> dict[str, float]:
    """The environment's own figures of merit over some episodes."""
    if parts.env.host.summarise is None:
        return {}
    extra = parts.env.host.summarise({name: np.asarray(total) for name, total in evaluation.info.items()})
    return {f"eval_{name}": float(np.mean(value)) for name, value in extra.items()}


def spread_over_seeds(
    parts: Parts, per_lane: Sequence[dict[str, Any]], results: Sequence[Evaluation]
) -> dict[str, Any]:
    """Score and interval of every evaluation metric over seeds (ops/statistics.py), and their description.

    A seed's result is its mean over episodes. A single seed has the uncertainty of this mean instead: a 95 %
    bootstrap interval over its episodes, which does not describe other seeds.
    """
    spread: dict[str, Any] = {"eval_spread": spread_text(len(per_lane), len(results[0].returns))}
    names = [n for n in per_lane[0] if n not in ("eval_return_std", "eval_length", "eval_finished")]
    resampled = _resampled_episodes(parts, results[0]) if len(per_lane) == 1 else []
    for name in names:
        value, low, high = score(np.array([values[name] for values in per_lane]))
        if len(per_lane) == 1:
            if name == "eval_return":
                low, high = bootstrap_interval(np.asarray(results[0].returns), np.mean)
            else:
                low, high = np.percentile([values[name] for values in resampled], [2.5, 97.5])
        spread[f"{name}_score"] = float(value)
        spread[f"{name}_interval"] = [float(low), float(high)]
    return spread


def spread_text(seeds: int, episodes: int) -> str:
    """Description of a score and its interval."""
    if seeds == 1:
        return f"mean, 95 % interval over {episodes} episodes of one seed"
    return score_text(seeds)


def _resampled_episodes(parts: Parts, evaluation: Evaluation, times: int = 1000) -> list[dict[str, float]]:
    """The figures of merit of bootstrap resamples of episodes."""
    if parts.env.host.summarise is None:
        return []
    episodes = len(evaluation.returns)
    generator = np.random.default_rng(0)
    draws = (generator.integers(episodes, size=episodes) for _ in range(times))  # all at once take too much
    info: dict[str, Any] = {name: np.asarray(total) for name, total in evaluation.info.items()}
    return [
        summaries(parts, evaluation._replace(info={name: total[draw] for name, total in info.items()}))
        for draw in draws
    ]


def params_hash(params: Sequence[PyTree]) -> str:
    """SHA-256 over learners' parameters, one after the other, in the order of the tree."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(jax.device_get(list(params))):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()


def summaries_of_lanes(parts: Parts, runner: SeedRunner, final: Sequence[Evaluation]) -> list[dict[str, Any]]:
    """The summary of each trial of a sweep, as if it had run alone."""
    params = runner.per_lane([parts.workflow.learner(state).params for state in runner.states])
    entries = []
    for lane, evaluation, own in zip(runner.lanes, final, params, strict=True):
        values = describe(parts, evaluation)
        sound = all(np.isfinite(leaf).all() for leaf in [*jax.tree.leaves(own), evaluation.returns])
        entries.append(
            {
                "trial": lane.name,
                "diverged": not sound,
                **values,
                **spread_over_seeds(parts, [values], [evaluation]),
                "params_sha256": params_hash([own]),
            }
        )
    return entries
