"""Experiment trackers as metrics Writers: Weights & Biases and MLflow.

    run.trackers=[wandb,mlflow]        pip install "jaxrl-hpc[tracking]"

Both write into the run's folder and use no network unless their own environment variables request it: W&B is
offline (`wandb sync RUN_DIR/wandb/offline-run-*` uploads it; WANDB_MODE=online does so at once), MLflow uses
a file store (MLFLOW_TRACKING_URI names another). They get the mean over seeds of every metric.

A tracker cannot remove logged data. So `tracking/<name>.json` records the last step logged to each, and a
resumed run, which repeats the steps after its checkpoint exactly, logs nothing until it passes that step.
"""

from __future__ import annotations

import abc
import importlib
import json
import math
import os
import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl_hpc.checkpoint.blocks import write_atomically
from jaxrl_hpc.errors import UserError
from jaxrl_hpc.extras import how_to_install
from jaxrl_hpc.metrics.parquet import CORE_SCHEMA, Row
from jaxrl_hpc.read_files import read_json
from jaxrl_hpc.schema import flatten


def means(rows: Sequence[Row]) -> dict[int, dict[str, float]]:
    """Environment steps -> name (train/… or eval/…) -> mean over seeds of the finite values."""
    samples: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        shown = {name: value for name, value in row.items() if name not in CORE_SCHEMA.names}
        for name, value in {**shown, "updates": row["updates"]}.items():
            if value is not None and not isinstance(value, str) and math.isfinite(value):
                tag = f"{row['kind']}/{name.removeprefix('eval_')}"
                samples[int(row["env_steps"])][tag].append(float(value))
    return {
        step: {tag: sum(values) / len(values) for tag, values in tags.items()}
        for step, tags in samples.items()
    }


def load_library(name: str) -> Any:
    """A tracker's package; a sentence on how to get it where it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(
            f"run.trackers: {name} is not installed: {how_to_install('tracking')}, or leave {name} out"
        ) from None


def check_installed(names: Sequence[str]) -> None:
    """Check trackers before anything is made or compiled."""
    for name in names:
        load_library(name)


def make_tracker(name: str, run_dir: str | Path, config: Mapping[str, Any], resumed: bool) -> Tracker:
    return {"wandb": WandbTracker, "mlflow": MlflowTracker}[name](Path(run_dir), config, resumed)


class Tracker(abc.ABC):
    """A Writer that logs every step once. Subclasses start or continue a run, and log."""

    name = ""

    def __init__(self, run_dir: Path, config: Mapping[str, Any], resumed: bool) -> None:
        self.run_dir, self.config = run_dir, config
        self._file = run_dir / "tracking" / f"{self.name}.json"
        known = read_json(self._file) if resumed and self._file.exists() else {}
        self.last: int = known.get("last", -1)  # environment steps of the last entry logged
        self.id: str = self.start(known.get("id"))
        self._remember()

    @abc.abstractmethod
    def start(self, identity: str | None) -> str:
        """Begin a run, or continue the one with this identity; returns its identity."""

    @abc.abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers of one moment of the run."""

    def append(self, rows: Sequence[Row]) -> None:
        for step, values in sorted(means(rows).items()):
            if step > self.last:
                self.log(step, values)
                self.last = step
        self._remember()

    def _remember(self) -> None:
        self._file.parent.mkdir(exist_ok=True)
        write_atomically(self._file, json.dumps({"id": self.id, "last": self.last}).encode())

    def flush(self) -> None:  # noqa: B027
        """Trackers send entries at once."""

    @abc.abstractmethod
    def close(self) -> None:
        """The run has ended."""

    @property
    def title(self) -> str:
        return str(self.config.get("run", {}).get("name", self.run_dir.name))


class WandbTracker(Tracker):
    """Weights & Biases. One run however often it is resumed: its parts have the same id."""

    name = "wandb"

    def start(self, identity: str | None) -> str:
        wandb = load_library("wandb")
        identity = identity or secrets.token_hex(4)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "jaxrl_hpc"),
            name=self.title,
            id=identity,
            resume="allow",
            dir=str(self.run_dir),
            config=dict(self.config),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
        )
        self._run.define_metric("*", step_metric="env_steps")
        return identity

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, "env_steps": step})

    def close(self) -> None:
        self._run.finish()


class MlflowTracker(Tracker):
    """MLflow, through its client: no global state, so that several runs may share a process."""

    name = "mlflow"

    def start(self, identity: str | None) -> str:
        load_library("mlflow")
        tracking = importlib.import_module("mlflow.tracking")
        store = os.environ.get("MLFLOW_TRACKING_URI")
        if not store:  # a folder needs neither database nor server, which MLflow prefers
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            store = (self.run_dir / "mlruns").resolve().as_uri()
        self._client = tracking.MlflowClient(tracking_uri=store)
        if identity:
            self._client.update_run(identity, status="RUNNING")
            return identity
        experiment = self._client.get_experiment_by_name("jaxrl_hpc")
        number = experiment.experiment_id if experiment else self._client.create_experiment("jaxrl_hpc")
        identity = str(self._client.create_run(number, run_name=self.title).info.run_id)
        for key, value in flatten(self.config).items():
            self._client.log_param(identity, key, value)
        return identity

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._client.log_metric(self.id, name, value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self.id)
