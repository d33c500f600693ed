"""The directory of a run, and its lock.

runs/<name>/  .jaxrl-hpc-run  the marker: this is a run directory, see files.py
              config.yaml     the effective config
              metrics/        Parquet, see metrics/parquet.py
              tensorboard/    event files
              tracking/       last step logged to each tracker, see metrics/trackers.py
              trace.json      of a run with run.profile, see metrics/trace.py
              checkpoints/    see checkpoint/checkpointer.py
              progress.json   progress at the newest checkpoint
              summary.json    the result; keys in SUMMARY_KEYS are stable
              plots/  report.html
              run.lock        the process that is writing
              ranks/          last heartbeat of each rank, see comm/watchdog.py

run = RunDirectory.open("runs/cartpole", resume=False)
with run.lock(): …

Overwritten runs are moved to runs/.trash/<name>. Add new kinds of files to files.KNOWN.
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
from jaxrl_hpc.checkpoint.blocks import write_atomically
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.read_files import read_json, read_yaml
from jaxrl_hpc.runs import files
from jaxrl_hpc.runs.lock import RunLock

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
    "eval_return_score",
    "eval_return_interval",  # [low, high]
    "eval_spread",  # what these two are over
    "params_sha256",
    "version",
    "commit",
)
SUMMARY_TEXTS = ("agent", "env", "workflow", "eval_spread", "params_sha256", "version", "commit")


class RunDirectory:
    """Paths of a run, and reading and writing of its small files."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_path = self.path / "config.yaml"
        self.metrics = self.path / "metrics"
        self.checkpoints = self.path / "checkpoints"
        self.summary_path = self.path / "summary.json"
        self.progress_path = self.path / "progress.json"
        self.plots = self.path / "plots"
        self.report = self.path / "report.html"

    @classmethod
    def open(cls, path: str | Path, resume: bool, overwrite: bool = False) -> RunDirectory:
        """For training. Makes and marks a new directory; an existing run only with `resume`, or `overwrite`:
        the caller then moves it aside under its lock. A run that is to be resumed may also not exist yet,
        so that a job script can always say --resume."""
        run = cls(path)
        try:
            new = run.check_openable(resume, overwrite)
            run.path.mkdir(parents=True, exist_ok=True)
            if new:
                files.mark(run.path)
        except OSError as error:
            raise UserError(f"cannot make the run directory {path}: {error.strerror}") from error
        return run

    def check_openable(self, resume: bool, overwrite: bool) -> bool:
        """UserError if training must not start here -> whether the directory has no files of a run yet."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file: choose another --run-dir")
        names = [p.name for p in self.path.iterdir()] if self.path.is_dir() else []
        # leftovers of a run that failed while being built are ignored
        new = all(name in ("run.lock", "ranks", files.MARKER) for name in names)
        if not new:
            self._check_contents(resume, overwrite)
        return new

    def _check_contents(self, resume: bool, overwrite: bool) -> None:
        if overwrite:
            files.check_may_overwrite(self.path)
        elif self.config_path.is_file():
            if not resume:
                raise UserError(
                    f"{self.path} exists already: continue it with --resume (in Python resume=True), replace "
                    "it with --overwrite (overwrite=True) or choose another --run-dir"
                )
        elif not files.is_marked(self.path):
            raise UserError(f"{self.path} is not empty and not a run: choose another --run-dir")
        elif left := [n for n in files.known_files(self.path) if not files.LIVE.fullmatch(n)]:
            raise UserError(
                f"{self.path} holds files of a run ({left[0]}) but no config.yaml: restore it, or move "
                "the files aside with --overwrite"
            )

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

    def move_aside(self) -> Path | None:
        """Move the files of an earlier run to the trash -> the new folder. Keeps the lock."""
        return files.move_aside(self.path)

    def write_config(self, config: Mapping[str, Any]) -> None:
        self._write(self.config_path, yaml.safe_dump(dict(config), sort_keys=False))

    def read_config(self) -> dict[str, Any]:
        config = read_yaml(self.config_path)
        if not isinstance(config, dict):
            raise UserError(f"{self.config_path} is not a config")
        return config

    def write_progress(self, progress: Mapping[str, Any]) -> None:
        """Record the progress of the newest checkpoint, for `jaxrl-hpc runs`."""
        self._write(self.progress_path, json.dumps(_jsonable(progress)) + "\n")

    def begin_first_save(self) -> None:
        """Mark that files may exist which no committed checkpoint needs."""
        self._write(self.checkpoints / files.FIRST_SAVE, "No checkpoint has been completed yet.\n")

    def end_first_save(self) -> None:
        """Mark that there is a checkpoint: without a readable one the run is damaged."""
        path = self.checkpoints / files.FIRST_SAVE
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise UserError(f"cannot remove {path}: {error.strerror}") from error

    @staticmethod
    def _write(path: Path, text: str) -> None:
        try:
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, text.encode())
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from error

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replace summary.json atomically; NaN becomes null."""
        missing = [key for key in SUMMARY_KEYS if key not in summary]
        if missing:
            raise ValueError(f"the summary lacks {', '.join(missing)}")
        text = json.dumps(_jsonable(summary), indent=2, allow_nan=False, ensure_ascii=False)
        self._write(self.summary_path, text + "\n")

    def read_summary(self) -> dict[str, Any] | None:
        """None while the run has not finished."""
        if not self.summary_path.exists():
            return None
        summary = read_json(self.summary_path)
        if not isinstance(summary, dict):
            raise UserError(f"{self.summary_path} is damaged: it is not a summary")
        for key in SUMMARY_KEYS:
            if key not in summary:
                raise UserError(f"{self.summary_path} is damaged: it has no {key}")
            if not _plausible(key, summary.get(key)):
                raise UserError(f"{self.summary_path} is damaged: {key} is {summary[key]!r}")
        return summary


def _plausible(key: str, value: Any) -> bool:
    """Whether a value of a summary has the right type; NaN was written as null."""
    if value is None:
        return True
    if key in SUMMARY_TEXTS:
        return isinstance(value, str)
    if key == "eval_return_interval":
        return isinstance(value, list) and len(value) == 2 and all(_plausible("", end) for end in value)
    return isinstance(value, int | float) and not isinstance(value, bool)


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
