"""Sweeps small enough for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from jaxrl_hpc.sweeps.directory import SweepDirectory
from jaxrl_hpc.sweeps.plan import SweepPlan, make_plan
from jaxrl_hpc.sweeps.spec import load_spec
from tests import small

RUN = {
    "total_env_steps": 1200,
    "log_every": 200,
    "eval_every": 400,
    "eval_episodes": 2,
    "final_eval_episodes": 4,
}


def write(folder: Path, stem: str = "tiny", run: dict[str, Any] | None = None, **keys: Any) -> Path:
    """A sweep file over the small DQN config."""
    base = small.data(run=RUN | (run or {}))
    path = folder / f"{stem}.yaml"
    path.write_text(yaml.safe_dump({"base": base, **keys}, sort_keys=False))
    return path


def plan_of(path: Path, *overrides: str) -> SweepPlan:
    return make_plan(load_spec(path, overrides))


def made(folder: Path, **keys: Any) -> tuple[SweepPlan, SweepDirectory]:
    """A plan and its frozen folder."""
    plan = plan_of(write(folder, **keys))
    directory = SweepDirectory(folder / "sweep")
    directory.freeze(plan)
    return plan, directory
