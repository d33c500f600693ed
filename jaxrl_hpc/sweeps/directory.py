"""Files of a sweep, arranged so that no two tasks write the same one.

runs/sweeps/<name>/
  plans/<id>.yaml      the sweep as it was started: self-contained, never changed
  trials/<id>/         result of a trial, complete or absent: config.yaml, metrics/, summary.json
  tasks/<id>/          work of a task, under its lock; not needed once its trials are done
  broken/              unreadable folders of trials that were trained again
  rungs/<plan>/<n>/    scores at a rung of successive halving, one file per task
  slurm/               job scripts and logs
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from jaxrl_hpc import config as configs
from jaxrl_hpc.checkpoint.blocks import write_atomically
from jaxrl_hpc.config.compare import changeable, differences
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.metrics.parquet import MetricsWriter
from jaxrl_hpc.runs.directory import RunDirectory
from jaxrl_hpc.sweeps.plan import SweepPlan, Task, Trial, digest
from jaxrl_hpc.sweeps.spec import SPEC_PARTS, SweepSpec
from jaxrl_hpc.user_code import check_trusted, named_code, remember_trusted

FINISHED, DIVERGED, STOPPED = "finished", "diverged", "stopped"  # stopped: by successive halving
STATUSES = (FINISHED, DIVERGED, STOPPED)


class SweepDirectory:
    """Paths of a sweep, and reading and writing of its small files."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.plans = self.path / "plans"
        self.trials = self.path / "trials"
        self.tasks = self.path / "tasks"
        self.slurm = self.path / "slurm"
        self.table = self.path / "results.parquet"
        self.report = self.path / "report.html"
        self.trust = False  # import code that plans here name, even if this user did not make them

    @classmethod
    def of(cls, spec: SweepSpec, path: str | Path | None, source: str | Path) -> SweepDirectory:
        """The requested folder, the folder whose plan `source` is, or runs/sweeps/<name>."""
        if path is not None:
            return cls(path)
        origin = Path(source)
        if origin.is_dir():
            return cls(origin)
        if origin.is_file() and origin.resolve().parent.name == "plans":
            return cls(origin.resolve().parent.parent)
        return cls(Path("runs") / "sweeps" / spec.name)

    def task(self, task: Task) -> Path:
        return self.tasks / task.id

    def scores(self, plan: SweepPlan, rung: int) -> Path:
        return self.path / "rungs" / plan.id / str(rung)

    # -- plans ---------------------------------------------------------------

    def freeze(self, plan: SweepPlan, write: bool = True) -> Path:
        """Freeze the plan, so that later edits of files do not affect queued tasks.

        UserError if results here were made with another base config.
        """
        self.check_unchanged(plan)
        data = plan.spec.model_dump(mode="json", exclude_defaults=True)
        path = self.plans / f"{digest(data)}.yaml"
        if not write:
            return path
        remember_trusted(self.path, data, SPEC_PARTS)
        if path.is_file():
            os.utime(path)  # the newest plan is the one that counts
            return path
        try:
            self.plans.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the folder of the sweep {self.path}: {error.strerror}") from error
        # the name is a hash of the content, so concurrent writers write the same bytes
        write_atomically(path, yaml.safe_dump(data, sort_keys=False).encode())
        return path

    def check_unchanged(self, plan: SweepPlan) -> None:
        """Check that all plans started here have this base, and with halving these trials."""
        free = changeable(plan.trials[0].config)
        own = set(named_code(plan.spec.model_dump(mode="json"), SPEC_PARTS).values())
        for path in sorted(self.plans.glob("*.yaml")):
            earlier = _read_plan(path)
            if set(named_code(earlier, SPEC_PARTS).values()) - own:
                check_trusted(self.path, earlier, self.trust, SPEC_PARTS)
            axes = {key for spec in (earlier, {"axes": plan.spec.axes}) for key in spec.get("axes") or {}}
            now = _settled(plan.spec.base, axes)
            with configs.mistakes_located(path):
                before = _settled(earlier["base"], axes)
            changed = [d for d in differences(before, now) if d.split(" ")[0] not in free]
            if changed:
                raise UserError(
                    f"{self.path} holds trials of another base config: {'; '.join(changed)}; "
                    "undo that, or choose another folder with --dir"
                )
        if plan.spec.halving:
            others = [p.name for p in (self.path / "rungs").glob("*") if p.name != plan.id]
            if others:
                raise UserError(
                    f"{self.path} holds a halving of other trials, whose ranking does not apply to these; "
                    "choose another folder with --dir"
                )

    # -- results -------------------------------------------------------------

    def result(self, trial_id: str) -> dict[str, Any] | None:
        """A trial's summary; None if it is missing or damaged."""
        run = RunDirectory(self.trials / trial_id)
        try:
            summary = run.read_summary()
        except UserError:
            return None
        good = summary is not None and summary.get("trial") == trial_id and summary.get("status") in STATUSES
        return summary if good and any(run.metrics.glob("part-*.parquet")) else None

    def write_result(
        self, work: Path, trial: Trial, summary: Mapping[str, Any], rows: list[dict[str, Any]]
    ) -> None:
        """Make a trial's folder in `work` (which is the caller's alone) and move it into place."""
        made = RunDirectory(work / trial.id)
        shutil.rmtree(made.path, ignore_errors=True)
        made.path.mkdir(parents=True)
        made.write_config(trial.config.to_dict())
        writer = MetricsWriter(made.path)
        writer.append(rows)
        writer.close()
        made.write_summary(summary)
        self.trials.mkdir(parents=True, exist_ok=True)
        target = self.trials / trial.id
        if target.exists() and self.result(trial.id) is None:  # broken: out of the way
            (self.path / "broken").mkdir(exist_ok=True)
            os.rename(target, self.path / "broken" / f"{trial.id}-{uuid.uuid4().hex[:8]}")
        try:
            os.rename(made.path, target)
            remember_trusted(target, trial.config.to_dict())
        except OSError:
            if self.result(trial.id) is None:
                raise
            shutil.rmtree(made.path)  # a task of another plan was faster: same trial, same result


def _read_plan(path: Path) -> dict[str, Any]:
    data = configs.read_yaml(path)
    parts = (data, data.get("base"), data.get("axes") or {}) if isinstance(data, dict) else (data,)
    if not all(isinstance(part, dict) and all(isinstance(key, str) for key in part) for part in parts):
        raise UserError(
            f"{path} is damaged: it is not the plan of a sweep; put it back, or choose another folder with "
            "--dir"
        )
    found: dict[str, Any] = data
    return found


def _settled(base: dict[str, Any], axes: Iterable[str]) -> dict[str, Any]:
    """A base config with all defaults, except what the sweep or its axes set."""
    data = configs.from_dict(base).to_dict()
    for path in ("run.name", "run.seed", "run.seeds", *axes):
        *sections, name = path.split(".")
        node: Any = data
        for section in sections:
            node = node.get(section, {}) if isinstance(node, dict) else {}
        node.pop(name, None)
    return data
