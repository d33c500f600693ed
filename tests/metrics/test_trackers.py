"""Trackers: every step once, also after a kill; nothing leaves the machine."""

from __future__ import annotations

import importlib.util
import json
import struct
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from jaxrl_hpc.errors import UserError
from jaxrl_hpc.metrics import trackers
from jaxrl_hpc.metrics.parquet import read_metrics
from jaxrl_hpc.runtime import train
from tests import small

BLOCK, FULL, LAST = 32768, 1, 4  # of LevelDB's log format
QUICK = {"total_env_steps": 1600, "log_every": 400, "eval_every": 800, "final_eval_episodes": 4}
# both libraries use what Python or pydantic will drop some day
pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning", "default::FutureWarning")


def needs(name: str) -> Any:
    missing = importlib.util.find_spec(name) is None
    return pytest.mark.skipif(missing, reason=f"{name} is not installed: the extra tracking brings it")


def row(step: int, seed: int, **values: Any) -> dict[str, Any]:
    core = {"iteration": 0, "env_steps": step, "updates": step // 2, "seed": seed, "kind": "train"}
    return core | {"wall_seconds": 0.0} | values


def test_means_over_seeds_leave_out_what_is_no_number() -> None:
    rows = [row(10, 0, loss=1.0, note="x"), row(10, 1, loss=3.0), row(20, 0, loss=float("nan"))]
    rows.append(row(20, 0, eval_return=5.0) | {"kind": "eval"})
    assert trackers.means(rows) == {
        10: {"train/loss": 2.0, "train/updates": 5.0},
        20: {"train/updates": 10.0, "eval/return": 5.0, "eval/updates": 10.0},
    }


class Listener(trackers.Tracker):
    """Remembers what it was told, over all processes."""

    name = "listener"
    heard: list[tuple[int, float]]

    def start(self, identity: str | None) -> str:
        return identity or "new"

    def log(self, step: int, values: Any) -> None:
        self.heard.append((step, values["train/loss"]))

    def close(self) -> None:
        pass


def test_a_resumed_run_says_nothing_twice(tmp_path: Path) -> None:
    Listener.heard = heard = []
    first = Listener(tmp_path, {}, resumed=False)
    for step in (10, 20, 30):  # then killed; the checkpoint was made at 10
        first.append([row(step, 0, loss=float(step))])
    second = Listener(tmp_path, {}, resumed=True)
    assert second.id == "new"
    for step in (20, 30, 40):
        second.append([row(step, 0, loss=float(step))])
    assert heard == [(10, 10.0), (20, 20.0), (30, 30.0), (40, 40.0)]
    third = Listener(tmp_path, {}, resumed=False)  # from the beginning
    third.append([row(10, 0, loss=1.0)])
    assert heard[-1] == (10, 1.0)


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    config = small.config(run={**QUICK, "trackers": ["wandb"]})
    with pytest.raises(UserError, match=r'wandb is not installed: pip install "jaxrl-hpc\[tracking\]"'):
        train.train(config, tmp_path / "run")
    assert not (tmp_path / "run" / "config.yaml").exists()


def interrupted(config: Any, folder: Path, monkeypatch) -> None:
    """Train, be stopped half way, and finish."""
    small.signal_at_chunk(monkeypatch, 2)
    assert not train.train(config, folder, say=lambda _: None).finished
    assert train.train(config, folder, resume=True, say=lambda _: None).finished


def logged(folder: Path) -> dict[int, float]:
    table = read_metrics(folder).to_pandas()
    return dict(table[table.kind == "train"].groupby("env_steps").loss.mean())


@needs("mlflow")
def test_mlflow_in_a_local_store(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # set back afterwards
    config = small.config(run={**QUICK, "trackers": ["mlflow"], "seeds": 2})
    interrupted(config, tmp_path / "run", monkeypatch)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(tmp_path / "run" / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("jaxrl_hpc")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.data.params["agent.name"] == "dqn" and found.info.status == "FINISHED"
    history = client.get_metric_history(found.info.run_id, "train/loss")
    assert [m.step for m in history] == sorted(logged(tmp_path / "run"))
    assert {m.step: m.value for m in history} == pytest.approx(logged(tmp_path / "run"))


@needs("wandb")
def test_wandb_offline(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    config = small.config(run={**QUICK, "trackers": ["wandb"]})
    interrupted(config, tmp_path / "run", monkeypatch)
    parts = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(parts) == 2 and len({part.name for part in parts}) == 1  # one run in two parts
    deadline = time.monotonic() + 600  # a process of wandb's own writes them, and may do so a little later
    while len(history := [item for part in parts for item in read_history(part)]) < len(
        logged(tmp_path / "run")
    ):
        assert time.monotonic() < deadline, f"wandb has written only {history}"
        time.sleep(0.1)
    assert {int(h["env_steps"]): h["train/loss"] for h in history} == pytest.approx(logged(tmp_path / "run"))
    assert len(history) == len(logged(tmp_path / "run"))


def read_history(path: Path) -> list[dict[str, float]]:
    """Rows in a .wandb file: protocol buffers in LevelDB's log format, after a header of seven bytes."""
    from wandb.proto import wandb_internal_pb2

    content, place, record, found = path.read_bytes(), 7, b"", []
    while place + 7 <= len(content):
        room = BLOCK - place % BLOCK
        if room < 7:  # too little for another header: the rest of the block is empty
            place += room
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (FULL, LAST):
            message = wandb_internal_pb2.Record()
            message.ParseFromString(record)
            record = b""
            if message.WhichOneof("record_type") == "history":
                items = message.history.item
                found.append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items})
    return found
