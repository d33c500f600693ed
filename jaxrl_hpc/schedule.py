"""A run in iterations: how many, how many at a time, when to evaluate."""

from __future__ import annotations

from typing import NamedTuple

from jaxrl_hpc.build import Parts
from jaxrl_hpc.config import Config


class Schedule(NamedTuple):
    """The run in iterations after the warm-up."""

    total: int
    chunk: int
    evaluate_every: int  # iterations, a multiple of chunk; 0: only at the end

    @classmethod
    def of(cls, config: Config, parts: Parts, until: int | None = None) -> Schedule:
        """The config's schedule, or its beginning: whole chunks up to `until` environment steps."""
        per = parts.workflow.steps_per_iteration
        run = config.run
        total = -(-(run.total_env_steps - parts.workflow.warmup_steps) // per)
        chunk = max(1, min(run.log_every // per, total))
        every = max(1, round(run.eval_every / (chunk * per))) * chunk if run.eval_every else 0
        if until is not None and until < run.total_env_steps:
            chunks = round((until - parts.workflow.warmup_steps) / (per * chunk))
            total = min(total, max(1, chunks) * chunk)
        return cls(total, chunk, every)
