"""The directory of a run and who may write to it.

runs/<name>/  config.yaml     the effective config
              metrics/        Parquet, see metrics.py
              tensorboard/    event files
              tracking/       how far trackers were told, see tracking.py
              trace.json      of a run with run.profile, see trace.py
              checkpoints/    see checkpoint.py
              summary.json    the result; keys in SUMMARY_KEYS are stable
              plots/  report.html
              run.lock        who is writing
              ranks/          what each rank of a job last said, see comm/watchdog.py

run = RunDirectory.open("runs/cartpole", resume=False)
with run.lock(): …
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import jaxrl_hpc
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.io.blocks import write_atomically
from jaxrl_hpc.io.lock import RunLock

SUMMARY_KEYS = (
    "agent",
    "env",
    "workflow",
    "seeds",
    "env_steps",
    "updates",
    "wall_seconds",
    "compile_seconds",
    "env_steps_per_second",
    "updates_per_second",
    "eval_return_iqm",
    "eval_return_ci95",  # [low, high]
    "params_sha256",
    "version",
    "commit",
)


class RunDirectory:
    """Paths of a run, and reading and writing of its small files."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_path = self.path / "config.yaml"
        self.metrics = self.path / "metrics"
        self.checkpoints = self.path / "checkpoints"
        self.summary_path = self.path / "summary.json"
        self.plots = self.path / "plots"
        self.report = self.path / "report.html"

    @classmethod
    def open(cls, path: str | Path, resume: bool) -> RunDirectory:
        """For training. Makes a new directory; an existing run only with `resume`. A run that is to
        be resumed may also not exist yet, so that a job script can always say --resume."""
        run = cls(path)
        if run.path.exists() and not run.path.is_dir():
            raise UserError(f"{path} is a file: choose another --run-dir")
        if run.path.is_dir() and any(run.path.iterdir()):
            early = ("run.lock", "ranks")  # what a run that broke while it was being built leaves behind
            if not run.config_path.is_file() and any(p.name not in early for p in run.path.iterdir()):
                raise UserError(f"{path} is not empty and not a run: choose another --run-dir")
            if run.config_path.is_file() and not resume:
                raise UserError(
                    f"{path} exists already: continue it with --resume or choose another --run-dir"
                )
        try:
            run.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the run directory {path}: {error.strerror}") from error
        return run

    @classmethod
    def existing(cls, path: str | Path) -> RunDirectory:
        """For reading: evaluate, report, resume."""
        run = cls(path)
        if not run.path.is_dir():
            raise UserError(f"there is no run directory {path}")
        if not run.config_path.is_file():
            raise UserError(f"{path} has no config.yaml: it is not the directory of a run")
        return run

    def lock(self) -> RunLock:
        """A context manager; UserError if another process is writing this run."""
        return RunLock(self.path / "run.lock")

    def write_config(self, config: Mapping[str, Any]) -> None:
        write_atomically(self.config_path, yaml.safe_dump(dict(config), sort_keys=False).encode())

    def read_config(self) -> dict[str, Any]:
        try:
            config = yaml.safe_load(self.config_path.read_text())
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise UserError(f"{self.config_path} cannot be read: {error}") from error
        if not isinstance(config, dict):
            raise UserError(f"{self.config_path} is not a config")
        return config

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replace summary.json as a whole; not-a-number becomes null."""
        missing = [key for key in SUMMARY_KEYS if key not in summary]
        if missing:
            raise ValueError(f"the summary lacks {', '.join(missing)}")
        text = json.dumps(_jsonable(summary), indent=2, allow_nan=False, ensure_ascii=False)
        write_atomically(self.summary_path, (text + "\n").encode())

    def read_summary(self) -> dict[str, Any] | None:
        """None while the run has not finished."""
        if not self.summary_path.exists():
            return None
        try:
            summary = json.loads(self.summary_path.read_text())
        except (OSError, ValueError) as error:
            raise UserError(f"{self.summary_path} cannot be read: {error}") from error
        if not isinstance(summary, dict):
            raise UserError(f"{self.summary_path} is not a summary")
        return summary


def code_version() -> dict[str, str | None]:
    """`version` of the package and git `commit` of the checkout it runs from ("-dirty" if changed)."""
    return {
        "version": jaxrl_hpc.__version__,
        "commit": _commit(Path(jaxrl_hpc.__file__).resolve().parents[1]),
    }


def _commit(root: Path) -> str | None:
    if not (root / ".git").exists():  # installed: a repository further up is not ours
        return None
    outputs = []
    for command in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"]):
        try:
            done = subprocess.run(
                ["git", "-C", str(root), *command], capture_output=True, text=True, timeout=20
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode != 0:
            return None
        outputs.append(done.stdout.strip())
    return outputs[0] + ("-dirty" if outputs[1] else "")


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _jsonable(item) for name, item in value.items()}
    if isinstance(value, str) or value is None or isinstance(value, bool):
        return value
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    plain = np.asarray(value).tolist()
    if isinstance(plain, list):
        return _jsonable(plain)
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain
