"""What evaluations and parameters amount to: the figures of summary.json."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_hpc.build import Parts
from jaxrl_hpc.ops.statistics import bootstrap_interval, interquartile_mean
from jaxrl_hpc.rollout import Evaluation
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
    if parts.env.summarise is None:
        return {}
    extra = parts.env.summarise({name: np.asarray(total) for name, total in evaluation.info.items()})
    return {f"eval_{name}": float(np.mean(value)) for name, value in extra.items()}


def spread_over_seeds(
    parts: Parts, per_lane: Sequence[dict[str, Any]], results: Sequence[Evaluation]
) -> dict[str, Any]:
    """IQM and 95 % bootstrap interval of every evaluation metric over seeds.

    A single seed shows the spread of its episodes instead.
    """
    spread: dict[str, Any] = {}
    names = [n for n in per_lane[0] if n not in ("eval_return_std", "eval_length", "eval_finished")]
    resampled = _resampled_episodes(parts, results[0]) if len(per_lane) == 1 else []
    for name in names:
        samples = np.array([values[name] for values in per_lane])
        if resampled and name != "eval_return":
            low, high = np.percentile([values[name] for values in resampled], [2.5, 97.5])
        else:
            if len(per_lane) == 1:
                samples = np.asarray(results[0].returns)
            low, high = bootstrap_interval(samples)
        spread[f"{name}_iqm"] = float(interquartile_mean(samples))
        spread[f"{name}_ci95"] = [float(low), float(high)]
    return spread


def _resampled_episodes(parts: Parts, evaluation: Evaluation, times: int = 1000) -> list[dict[str, float]]:
    """The figures of merit of episodes drawn again and again with replacement."""
    if parts.env.summarise is None:
        return []
    episodes = len(evaluation.returns)
    draws = np.random.default_rng(0).integers(episodes, size=(times, episodes))
    info = {name: np.asarray(total) for name, total in evaluation.info.items()}
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
